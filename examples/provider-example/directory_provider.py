"""A provider that runs commands on this machine, each sandbox in a directory of its own. It isolates nothing.

`sandbox.exec` implements the promises about commands and files for any Linux machine that runs a shell
program. A provider for another platform replaces `DirectorySandbox._execute` by the platform's own call.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from sandbox.config import ConfigProblem, SandboxConfig
from sandbox.errors import FeatureUnsupported, ProviderRefused, ProviderUnreachable, SandboxGone
from sandbox.exec.shell_sandbox import CommandSandbox
from sandbox.labels import key_of
from sandbox.model import Network, ResourceSupport, SandboxId, SandboxSpec
from sandbox.port import Capability, Feature, Provider, ProviderContext, ProviderPlugin, Sandbox


class DirectorySettings(BaseModel):
    """`[sandbox.directory]` has no settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DirectorySandbox(CommandSandbox):
    """A directory with `home`, `workspace` and the file `label`.

    It has no jobs (`sandbox.exec.shell_sandbox.ShellSandbox` has them) and is not suspended.
    """

    def __init__(self, directory: Path, spec: SandboxSpec) -> None:
        self._directory = directory
        name, mount, home = SandboxId(directory.name), str(directory / "workspace"), str(directory / "home")
        super().__init__(name, self._execute, spec, user="dovecote", home=home, mount=mount)

    async def _execute(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run a shell program and return its stdout (see `sandbox.exec.exec_sandbox.Exec`)."""
        if not (self._directory / "label").exists():
            raise SandboxGone
        program = self._directory / f"program-{secrets.token_hex(8)}"
        given = program.with_suffix(".input") if stdin else None
        if given:
            given.write_bytes(stdin)
        program.write_text(f"input={shlex.quote(str(given or ''))}\n{text}", errors="surrogateescape")
        process = await asyncio.create_subprocess_exec(
            "bash", program, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(timeout):
                return (await process.communicate())[0]
        except TimeoutError as error:
            raise ProviderUnreachable("the program did not end in time") from error
        finally:
            program.unlink(missing_ok=True)
            with suppress(ProcessLookupError):
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()


class DirectoryProvider(Provider):
    """The sandboxes below one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox of the label; a new one after each deletion, with an id of its own."""
        if spec.network is Network.RESTRICTED:
            raise FeatureUnsupported("the network cannot be restricted")
        key = key_of("directory", spec.label)
        directory = self._root / f"{key}x{self._count_deletions(key)}"
        for name in ("home", "workspace"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "label").write_text(spec.label)
        return DirectorySandbox(directory, spec)

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing sandbox."""
        if not sandbox_id.isalnum() or not (self._root / sandbox_id / "label").exists():
            raise SandboxGone
        return DirectorySandbox(self._root / sandbox_id, spec)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete the directory; the file of its key is one byte longer then."""
        if not sandbox_id.isalnum() or not (self._root / sandbox_id).exists():
            return
        key, _, number = sandbox_id.rpartition("x")
        if int(number) == self._count_deletions(key):
            with (self._root / f"{key}.deletions").open("ab") as file:
                file.write(b".")
        await asyncio.to_thread(shutil.rmtree, self._root / sandbox_id, ignore_errors=True)

    def _count_deletions(self, key: str) -> int:
        deletions = self._root / f"{key}.deletions"
        return deletions.stat().st_size if deletions.exists() else 0

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return the sandboxes by their label files."""
        found = [(SandboxId(path.parent.name), path.read_text()) for path in self._root.glob("*/label")]
        return sorted(one for one in found if one[1].startswith(label_prefix))


def _check(config: SandboxConfig) -> Sequence[ConfigProblem]:
    if config.network.mode == "allow-all":
        return ()
    return (ConfigProblem(pointer="/network/mode", detail="the network is not isolated: allow-all only"),)


@asynccontextmanager
async def _open(settings: DirectorySettings, context: ProviderContext) -> AsyncIterator[Provider]:
    del settings
    if not context.allow_unsandboxed:
        raise ProviderRefused("the provider `directory` isolates nothing: allow unsandboxed commands first")
    context.state.mkdir(parents=True, exist_ok=True)
    yield DirectoryProvider(context.state)


plugin = ProviderPlugin(
    name="directory",
    title="Directories on this machine",
    features=frozenset({Feature.PERSISTENT, Feature.SYNCS_WORKSPACE}),
    resources=ResourceSupport.none("commands on this machine are not limited: leave it out"),
    settings=DirectorySettings,
    check=_check,
    open=_open,
    capabilities=lambda _settings: [Capability(name="isolation", present=False, detail="none")],
    on_this_machine=True,
)
