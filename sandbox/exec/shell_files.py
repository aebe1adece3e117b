"""Workspace files of an instance without a file interface: each operation is one `run` of a shell program.

The program (`sandbox/exec/scripts/files.sh`) enters directories one by one and checks where it is, so no link
leads it out of the workspace. A link that is swapped in as the last name between the check and the opening
reaches a file of the instance itself, never one of the gateway's. Contents are passed by stdin and, in
base64, by stdout, so that a provider's text interface transports every byte.
"""

from __future__ import annotations

import base64
import binascii
import errno
import posixpath
import secrets
import shlex
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxGone, UnsafePath
from sandbox.exec.background_jobs import RunScript
from sandbox.exec.scripts import program
from sandbox.model import ExecRequest, ExecResult
from sandbox.paths import FileEntry, relative_path

TIMEOUT_SECONDS = 120.0
MAX_LISTING_BYTES = 4 * 1024 * 1024
"""The most bytes of names and sizes in a listing."""

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
_FAILURES: Mapping[int, Callable[[str], Exception]] = {
    40: lambda _path: SandboxGone("the workspace's directory no longer exists"),
    44: lambda path: FileNotFoundError(errno.ENOENT, "no such file", path),
    45: lambda path: IsADirectoryError(errno.EISDIR, "is a directory", path),
    46: lambda path: NotADirectoryError(errno.ENOTDIR, "not a directory", path),
    47: lambda path: UnsafePath(f"{path!r} leads out of the workspace"),
    48: lambda path: PermissionError(errno.EACCES, "permission denied", path),
    49: lambda path: UnsafePath(f"{path!r} is not a regular file"),
    50: lambda path: FileExistsError(errno.EEXIST, "exists already", path),
    52: lambda _path: ProviderUnreachable("the content was truncated"),
}
"""The meaning of the program's exit codes; any other is an error of the instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellFiles:
    """The files below `root`, an absolute path inside the instance."""

    run: RunScript
    root: str

    async def read(self, path: str, *, limit: int) -> bytes:
        """Return at most `limit` bytes of a regular file; raises UnsafePath, FileNotFoundError."""
        plain = self._file(path)
        steps = [*_enter(plain), _name_variable(plain), f"limit={max(0, limit)}", "read_file"]
        return _decode(await self._run_steps(path, steps, expected_bytes=limit))

    async def write(self, path: str, content: bytes) -> None:
        """Write a file atomically and durably and create its parents; raises UnsafePath."""
        plain = self._file(path)
        fresh = f"fresh=.{secrets.token_hex(8)}.tmp"
        steps = [*_enter(plain, "make"), _name_variable(plain), fresh, f"size={len(content)}", "write_file"]
        await self._run_steps(path, steps, stdin=content)

    async def list(self, path: str) -> Sequence[FileEntry]:
        """Return the entries of a directory, sorted by name."""
        steps = [*(_step("step", name) for name in _names(self._relative(path)))]
        output = await self._run_steps(
            path, [*steps, f"limit={MAX_LISTING_BYTES}", "list_directory"], expected_bytes=MAX_LISTING_BYTES
        )
        raw = _decode(output)
        if len(raw) >= MAX_LISTING_BYTES:
            raise ProviderRefused(f"{path!r} holds more names than can be listed")
        return sorted(_entries(raw), key=lambda entry: entry.name)

    async def stat(self, path: str) -> FileEntry:
        """Return the entry of a path; links are not followed."""
        plain = self._relative(path)
        output = await self._run_steps(path, [*_enter(plain), _name_variable(plain), "stat_one"])
        entries = _entries(_decode(output))
        if not entries:
            raise ProviderUnreachable(f"the sandbox did not describe {path!r}")
        return entries[0]

    async def remove(self, path: str) -> None:
        """Remove a file, a link (not its target) or a directory with its content."""
        plain = self._file(path)
        await self._run_steps(path, [*_enter(plain), _name_variable(plain), "remove_one"])

    async def rename(self, path: str, target: str) -> None:
        """Rename a file or directory within the workspace; an existing file is replaced."""
        await self._move(path, target, "rename_one")

    async def copy(self, path: str, target: str) -> None:
        """Copy a file, or a directory with its content, to a free name; links are copied as links."""
        await self._move(path, target, "copy_one")

    async def mkdir(self, path: str) -> None:
        """Create a directory and its parents. Idempotent."""
        await self._run_steps(path, [_step("make", name) for name in _names(self._relative(path))])

    async def _move(self, path: str, target: str, how: str) -> None:
        source, goal = self._file(path), self._file(target)
        steps = [
            *_enter(source),
            _name_variable(source),
            "hold",
            *_enter(goal, "make"),
            _name_variable(goal),
            how,
        ]
        await self._run_steps(path, steps)

    def _relative(self, path: str) -> str:
        return relative_path(path, self.root)

    def _file(self, path: str) -> str:
        plain = self._relative(path)
        if plain == ".":
            raise UnsafePath("a file needs a name")
        return plain

    async def _run_steps(
        self, path: str, steps: Sequence[str], *, stdin: bytes = b"", expected_bytes: int = 4096
    ) -> bytes:
        lines = [f"root={shlex.quote(self.root)}", program("files.sh"), "begin", *steps]
        limit = expected_bytes * 3 // 2 + 4096
        script = "\n".join(lines)
        result = await self.run(
            ExecRequest(script=script, stdin=stdin, timeout=TIMEOUT_SECONDS, output_limit=limit)
        )
        if not result.ok:
            raise _failure(result, path)
        return result.stdout


def _enter(path: str, how: str = "step") -> list[str]:
    """Return the shell steps that enter the directory of a file."""
    return [_step(how, name) for name in _names(posixpath.dirname(path))]


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in {"", "."}]


def _step(how: str, name: str) -> str:
    return f"{how} {shlex.quote(name)}"


def _name_variable(path: str) -> str:
    return f"name={shlex.quote(posixpath.basename(path))}"


def _decode(output: bytes) -> bytes:
    try:
        return base64.b64decode(output)
    except binascii.Error as error:
        raise ProviderUnreachable("the sandbox's answer was truncated") from error


def _entries(raw: bytes) -> list[FileEntry]:
    """Parse the entries of `stat`: each begins with a slash, which no name contains."""
    return [_entry(record) for record in raw.split(b"/")[1:]]


def _entry(record: bytes) -> FileEntry:
    try:
        mode, size, *times, name = record.removesuffix(b"\n").split(b" ", 4)
        modified, changed = map(float, times)
        kind = _KINDS.get(stat.S_IFMT(int(mode, 16)), "other")
        text = name.decode("utf-8", "surrogateescape")
        return FileEntry(name=text, kind=kind, size=int(size), modified=modified, changed=changed)
    except ValueError as error:
        raise ProviderUnreachable(f"invalid file listing from the sandbox: {record[:200]!r}") from error


def _failure(result: ExecResult, path: str) -> Exception:
    if result.timed_out:
        return ProviderUnreachable(f"the operation on {path!r} timed out")
    if result.exit_code in _FAILURES:
        return _FAILURES[result.exit_code](path)
    return ProviderRefused(
        f"{path!r}: {result.stderr[-500:].decode(errors='replace').strip() or 'the operation failed'}"
    )
