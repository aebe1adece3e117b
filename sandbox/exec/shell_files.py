"""Workspace files of a box that has no file interface: each operation is one `run` of a small shell program.

The program (`sandbox/exec/scripts/files.sh`) enters directories one by one and looks where it has come to, so that
no link leads it out of the workspace; a link swapped in at the very last name, between the look and the
opening, reaches a file of the box itself, never one of the gateway's. Contents travel by stdin and, in
base64, by stdout, so that a provider's text interface carries every byte.
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
"""Bytes of names and sizes that a directory may have to be listed."""

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
    52: lambda _path: ProviderUnreachable("the content did not arrive whole"),
}
"""What the program's exit codes mean; any other is the box's own trouble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellFiles:
    """The files below `root`, an absolute path inside the box."""

    run: RunScript
    root: str

    async def read(self, path: str, *, limit: int) -> bytes:
        """Return at most `limit` bytes of a regular file; raises Unsafe, FileNotFoundError."""
        plain = self._file(path)
        steps = [*_enter(plain), _name_variable(plain), f"limit={max(0, limit)}", "read_file"]
        return _decode(await self._run_steps(path, steps, expected_bytes=limit))

    async def write(self, path: str, content: bytes) -> None:
        """Write a file whole or not at all, brought to the disk; parents are made; raises Unsafe."""
        plain = self._file(path)
        fresh = f"fresh=.{secrets.token_hex(8)}.tmp"
        steps = [*_enter(plain, "make"), _name_variable(plain), fresh, f"size={len(content)}", "write_file"]
        await self._run_steps(path, steps, stdin=content)

    async def list(self, path: str) -> Sequence[FileEntry]:
        """Return what stands in a directory, by name."""
        steps = [*(_step("step", name) for name in _names(self._relative(path)))]
        answer = await self._run_steps(
            path, [*steps, f"limit={MAX_LISTING_BYTES}", "list_directory"], expected_bytes=MAX_LISTING_BYTES
        )
        raw = _decode(answer)
        if len(raw) >= MAX_LISTING_BYTES:
            raise ProviderRefused(f"{path!r} holds more names than can be listed")
        return sorted(_entries(raw), key=lambda entry: entry.name)

    async def stat(self, path: str) -> FileEntry:
        """Return what a name stands for; a link is told as a link."""
        plain = self._relative(path)
        answer = await self._run_steps(path, [*_enter(plain), _name_variable(plain), "stat_one"])
        entries = _entries(_decode(answer))
        if not entries:
            raise ProviderUnreachable(f"the box says nothing of {path!r}")
        return entries[0]

    async def remove(self, path: str) -> None:
        """Remove a file, a link (not what it leads to) or a directory with all in it."""
        plain = self._file(path)
        await self._run_steps(path, [*_enter(plain), _name_variable(plain), "remove_one"])

    async def rename(self, path: str, target: str) -> None:
        """Give a file or directory another name below the workspace; a file there is replaced."""
        await self._move(path, target, "rename_one")

    async def copy(self, path: str, target: str) -> None:
        """Copy a file, or a directory with all in it, to a name that is free; links stay links."""
        await self._move(path, target, "copy_one")

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents; one that is there is no error."""
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
    """Return the steps into the directory that a file is in."""
    return [_step(how, name) for name in _names(posixpath.dirname(path))]


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in {"", "."}]


def _step(how: str, name: str) -> str:
    return f"{how} {shlex.quote(name)}"


def _name_variable(path: str) -> str:
    return f"name={shlex.quote(posixpath.basename(path))}"


def _decode(answer: bytes) -> bytes:
    try:
        return base64.b64decode(answer)
    except binascii.Error as error:
        raise ProviderUnreachable("the box's answer was cut short") from error


def _entries(raw: bytes) -> list[FileEntry]:
    """Return the entries of `stat`'s words: each begins with a slash, which no name holds."""
    return [_entry(record) for record in raw.split(b"/")[1:]]


def _entry(record: bytes) -> FileEntry:
    try:
        mode, size, *times, name = record.removesuffix(b"\n").split(b" ", 4)
        modified, changed = map(float, times)
        kind = _KINDS.get(stat.S_IFMT(int(mode, 16)), "other")
        text = name.decode("utf-8", "surrogateescape")
        return FileEntry(name=text, kind=kind, size=int(size), modified=modified, changed=changed)
    except ValueError as error:
        raise ProviderUnreachable(f"the box says of a file: {record[:200]!r}") from error


def _failure(result: ExecResult, path: str) -> Exception:
    if result.timed_out:
        return ProviderUnreachable(f"the box takes too long over {path!r}")
    if result.exit_code in _FAILURES:
        return _FAILURES[result.exit_code](path)
    return ProviderRefused(
        f"{path!r}: {result.stderr[-500:].decode(errors='replace').strip() or 'the box failed'}"
    )
