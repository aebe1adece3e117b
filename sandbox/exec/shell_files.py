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

from sandbox.errors import Gone, Refused, Unreachable, Unsafe
from sandbox.exec.background_jobs import Run
from sandbox.exec.scripts import program
from sandbox.model import Command, Result
from sandbox.paths import Entry, relative

PATIENCE = 120.0
LONGEST_LISTING = 4 * 1024 * 1024
"""Bytes of names and sizes that a directory may have to be listed."""

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
_FAILURES: Mapping[int, Callable[[str], Exception]] = {
    40: lambda _path: Gone("the workspace's directory no longer exists"),
    44: lambda path: FileNotFoundError(errno.ENOENT, "no such file", path),
    45: lambda path: IsADirectoryError(errno.EISDIR, "is a directory", path),
    46: lambda path: NotADirectoryError(errno.ENOTDIR, "not a directory", path),
    47: lambda path: Unsafe(f"{path!r} leads out of the workspace"),
    48: lambda path: PermissionError(errno.EACCES, "permission denied", path),
    49: lambda path: Unsafe(f"{path!r} is not a regular file"),
    50: lambda path: FileExistsError(errno.EEXIST, "exists already", path),
    52: lambda _path: Unreachable("the content did not arrive whole"),
}
"""What the program's exit codes mean; any other is the box's own trouble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellFiles:
    """The files below `root`, an absolute path inside the box."""

    run: Run
    root: str

    async def read(self, path: str, *, limit: int) -> bytes:
        """Return at most `limit` bytes of a regular file; raises Unsafe, FileNotFoundError."""
        plain = self._file(path)
        steps = [*_enter(plain), _named(plain), f"limit={max(0, limit)}", "read_file"]
        return _decoded(await self._do(path, steps, expect=limit))

    async def write(self, path: str, content: bytes) -> None:
        """Write a file whole or not at all, brought to the disk; parents are made; raises Unsafe."""
        plain = self._file(path)
        fresh = f"fresh=.{secrets.token_hex(8)}.tmp"
        steps = [*_enter(plain, "make"), _named(plain), fresh, f"size={len(content)}", "write_file"]
        await self._do(path, steps, stdin=content)

    async def list(self, path: str) -> Sequence[Entry]:
        """Return what stands in a directory, by name."""
        steps = [*(_step("step", name) for name in _names(self._plain(path)))]
        answer = await self._do(
            path, [*steps, f"limit={LONGEST_LISTING}", "list_directory"], expect=LONGEST_LISTING
        )
        raw = _decoded(answer)
        if len(raw) >= LONGEST_LISTING:
            raise Refused(f"{path!r} holds more names than can be listed")
        return sorted(_entries(raw), key=lambda entry: entry.name)

    async def stat(self, path: str) -> Entry:
        """Return what a name stands for; a link is told as a link."""
        plain = self._plain(path)
        answer = await self._do(path, [*_enter(plain), _named(plain), "stat_one"])
        entries = _entries(_decoded(answer))
        if not entries:
            raise Unreachable(f"the box says nothing of {path!r}")
        return entries[0]

    async def remove(self, path: str) -> None:
        """Remove a file, a link (not what it leads to) or a directory with all in it."""
        plain = self._file(path)
        await self._do(path, [*_enter(plain), _named(plain), "remove_one"])

    async def rename(self, path: str, target: str) -> None:
        """Give a file or directory another name below the workspace; a file there is replaced."""
        await self._move(path, target, "rename_one")

    async def copy(self, path: str, target: str) -> None:
        """Copy a file, or a directory with all in it, to a name that is free; links stay links."""
        await self._move(path, target, "copy_one")

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents; one that is there is no error."""
        await self._do(path, [_step("make", name) for name in _names(self._plain(path))])

    async def _move(self, path: str, target: str, how: str) -> None:
        source, goal = self._file(path), self._file(target)
        steps = [*_enter(source), _named(source), "hold", *_enter(goal, "make"), _named(goal), how]
        await self._do(path, steps)

    def _plain(self, path: str) -> str:
        return relative(path, self.root)

    def _file(self, path: str) -> str:
        plain = self._plain(path)
        if plain == ".":
            raise Unsafe("a file needs a name")
        return plain

    async def _do(self, path: str, steps: Sequence[str], *, stdin: bytes = b"", expect: int = 4096) -> bytes:
        lines = [f"root={shlex.quote(self.root)}", program("files.sh"), "begin", *steps]
        limit = expect * 3 // 2 + 4096
        script = "\n".join(lines)
        result = await self.run(Command(script=script, stdin=stdin, timeout=PATIENCE, output_limit=limit))
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


def _named(path: str) -> str:
    return f"name={shlex.quote(posixpath.basename(path))}"


def _decoded(answer: bytes) -> bytes:
    try:
        return base64.b64decode(answer)
    except binascii.Error as error:
        raise Unreachable("the box's answer was cut short") from error


def _entries(raw: bytes) -> list[Entry]:
    """Return the entries of `stat`'s words: each begins with a slash, which no name holds."""
    return [_entry(record) for record in raw.split(b"/")[1:]]


def _entry(record: bytes) -> Entry:
    try:
        mode, size, *times, name = record.removesuffix(b"\n").split(b" ", 4)
        modified, changed = map(float, times)
        kind = _KINDS.get(stat.S_IFMT(int(mode, 16)), "other")
        text = name.decode("utf-8", "surrogateescape")
        return Entry(name=text, kind=kind, size=int(size), modified=modified, changed=changed)
    except ValueError as error:
        raise Unreachable(f"the box says of a file: {record[:200]!r}") from error


def _failure(result: Result, path: str) -> Exception:
    if result.timed_out:
        return Unreachable(f"the box takes too long over {path!r}")
    if result.exit_code in _FAILURES:
        return _FAILURES[result.exit_code](path)
    return Refused(f"{path!r}: {result.stderr[-500:].decode(errors='replace').strip() or 'the box failed'}")
