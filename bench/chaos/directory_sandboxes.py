"""A sandbox provider whose instances are directories: they outlive a process that is killed."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from sandbox.errors import SandboxGone
from sandbox.model import (
    BackgroundJob,
    BackgroundJobState,
    ExecRequest,
    ExecResult,
    JobReport,
    SandboxId,
    SandboxSpec,
)
from sandbox.port import Provider, Sandbox
from sandbox.snapshots import archive

MAX_OUTPUT_BYTES = 1 << 20


class ScriptSandbox(Sandbox):
    """A directory that stores the scripts it was given."""

    def __init__(self, directory: Path) -> None:
        self.id = SandboxId(directory.name)
        self._directory = directory

    def _home(self) -> Path:
        if not self._directory.is_dir():
            raise SandboxGone
        return self._directory / "home"

    async def run(self, command: ExecRequest) -> ExecResult:
        """Append the script to HOME, and return all stored scripts."""
        said = self._home() / "said"
        said.parent.mkdir(exist_ok=True)
        with said.open("ab") as file:
            file.write(command.script.encode() + b"\n")
        return ExecResult(exit_code=0, stdout=said.read_bytes(), stderr=b"")

    async def spawn(self, job: BackgroundJob) -> None:
        """Run no job."""

    async def report(self, job_id: str) -> JobReport:
        """Know no job."""
        del job_id
        return JobReport(state=BackgroundJobState.UNKNOWN)

    async def stop(self, job_id: str) -> None:
        """Stop nothing."""

    async def read(self, path: str, *, limit: int) -> bytes:
        """Have no files."""
        raise FileNotFoundError(path[:limit])

    async def write(self, path: str, content: bytes) -> None:
        """Keep nothing."""

    async def suspend(self) -> None:
        """Do nothing: a directory needs no suspension."""
        self._home()

    async def save(self) -> AsyncIterator[bytes]:
        """Yield HOME."""
        with tempfile.TemporaryFile() as packed:
            archive.pack(self._home(), "home", packed, limit=MAX_OUTPUT_BYTES)
            packed.seek(0)
            yield packed.read()

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Restore HOME."""
        with tempfile.TemporaryDirectory() as folder:
            packed = Path(folder) / "packed"
            packed.write_bytes(b"".join([chunk async for chunk in archive]))
            home = self._home()
            _remove(home)
            home.mkdir()
            _unpack(packed, home)


def _unpack(packed: Path, home: Path) -> None:
    archive.unpack(packed, home, top="home", limit=MAX_OUTPUT_BYTES)


def _remove(directory: Path) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if directory.exists():
        directory.rmdir()


class ScriptProvider(Provider):
    """Directories with labels; `made` counts all that were ever created."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the directory of this label, created if missing: atomically, as real providers do."""
        for sandbox_id, label in await self.list():
            if label == spec.label:
                return ScriptSandbox(self._directory / sandbox_id)
        await asyncio.sleep(0.05)
        fresh = self._directory / f".{uuid.uuid4().hex}"
        fresh.mkdir()
        (fresh / "home").mkdir()
        (fresh / "label").write_text(spec.label)
        with (self._directory / ".made").open("a") as made:
            made.write(f"{spec.label}\n")
        return ScriptSandbox(fresh.rename(self._directory / fresh.name[1:]))

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing directory."""
        del spec
        if not (self._directory / sandbox_id).is_dir():
            raise SandboxGone
        return ScriptSandbox(self._directory / sandbox_id)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete a directory."""
        _remove(self._directory / sandbox_id)

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return the directories."""
        found = [(SandboxId(one.parent.name), one.read_text()) for one in self._directory.glob("[!.]*/label")]
        return [(one, label) for one, label in found if label.startswith(label_prefix)]

    def created_count(self) -> int:
        """Return how many directories were ever created."""
        return len((self._directory / ".made").read_text().splitlines())
