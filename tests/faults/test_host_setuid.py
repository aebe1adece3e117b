"""M10: no command on the host leaves a program behind that runs as the gateway's user, who may be root."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.model import ExecRequest
from sandbox.port import Provider
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import VARIANTS

TIMEOUT_SECONDS = 60.0


@pytest.fixture(params=("control_groups", "rlimits"))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return the host provider in both of its isolated ways."""
    return VARIANTS["host"][request.param](tmp_path)


@pytest.fixture
async def provider(rig: ProviderRig) -> AsyncIterator[Provider]:
    """Return the host provider."""
    async with rig.open() as provider:
        yield provider
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


SET_MODES = """
import ctypes, os
def attempt(call):
    try:
        call()
        print("done", end=" ")
    except OSError as error:
        print(error.errno, end=" ")
for name in ("chmod", "fchmod", "set_group"):
    open(name, "wb").write(open("/usr/bin/id", "rb").read())
    os.chmod(name, 0o755)
here = os.open(".", os.O_DIRECTORY)
attempt(lambda: os.chmod("chmod", 0o4755))
attempt(lambda: os.chmod("chmod", 0o4755, dir_fd=here))
attempt(lambda: os.fchmod(os.open("fchmod", os.O_RDONLY), 0o6755))
attempt(lambda: os.chmod("set_group", 0o2755))
attempt(lambda: os.open("created", os.O_CREAT | os.O_WRONLY, 0o4755))
attempt(lambda: os.mknod("node", 0o104755))
attempt(lambda: os.mknod("node_at", 0o104755, dir_fd=here))
libc = ctypes.CDLL(None, use_errno=True)
how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o4755, 0)
def openat2():
    if libc.syscall(437, here, b"how", how, 24) < 0:
        raise OSError(ctypes.get_errno(), "openat2")
attempt(openat2)
def fchmodat2():
    if libc.syscall(452, here, b"chmod", 0o4755, 0) < 0:
        raise OSError(ctypes.get_errno(), "fchmodat2")
attempt(fchmodat2)
os.chmod("chmod", 0o1700)
os.open("plain", os.O_RDWR | os.O_CREAT, 0o755)
"""


async def test_no_file_of_a_sandbox_has_the_rights_of_the_gateway(
    provider: Provider, rig: ProviderRig
) -> None:
    """Files belong to the gateway's user on the host, so no way to set their setuid bits succeeds."""
    spec = rig.spec(memory_mb=256)
    sandbox = await provider.create(spec)
    await sandbox.write("modes.py", SET_MODES.encode())
    result = await sandbox.run(ExecRequest(script="python3 modes.py", timeout=TIMEOUT_SECONDS))
    assert spec.workspace is not None
    modes = {one.name: one.stat() for one in spec.workspace.iterdir()}
    assert {one.st_uid for one in modes.values()} == {os.getuid()}
    assert [name for name, one in modes.items() if one.st_mode & 0o6000] == []
    answers = result.stdout.decode().split()
    assert (len(answers), "done" in answers) == (9, False), result
    assert modes["chmod"].st_mode & 0o7777 == 0o1700
    assert modes["plain"].st_size == 0
