"""A workspace inside a sandbox, seen and changed through the port alone: runs, and reads of what they leave.

What the sandbox says is never trusted: its list of names is bounded and judged, and of the archive it packs
only regular files that were asked for are taken, each as large as a file may be at the most.
"""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import PurePosixPath
from typing import IO, Self

from sandbox.errors import Refused, Unreachable
from sandbox.model import OUTPUT_CAP, Command, Result
from sandbox.port import Sandbox
from sandbox.workspaces.sync_plan import SECOND, Listing, Seen

STAGE = ".dovecote-sync"
"""A directory of ours in the workspace, there only while something is carried."""

PART = 4 * 1024 * 1024
LONGEST_LISTING = 32 * 1024 * 1024
MOST_NAMES = 200_000
LONGEST_PATH = 4096
PATIENCE = 300.0
_PERMISSIONS = 0o755
_LIST = rf"find . -path ./{STAGE} -prune -o -type f -printf '%s %T@ %m %P\0'"
_FIELDS = 3


async def listing(sandbox: Sandbox) -> Listing:
    """Return the regular files of the workspace; links are not followed, and not told."""
    result = await sandbox.run(Command(script=_LIST, output_limit=OUTPUT_CAP, timeout=PATIENCE))
    if not result.stdout_truncated:
        return dict(_listed(_fine(result).stdout))
    await _fine_run(sandbox, f"rm -rf {STAGE}; mkdir -m 700 {STAGE} && {_LIST} >{STAGE}/list")
    try:
        raw = await sandbox.read(f"{STAGE}/list", limit=LONGEST_LISTING)
    finally:
        await _cleaned(sandbox)
    if len(raw) >= LONGEST_LISTING:
        raise Refused("the workspace holds more names than can be listed")
    return dict(_listed(raw))


def _listed(raw: bytes) -> Iterator[tuple[str, Seen]]:
    for count, record in enumerate(raw.split(b"\0")[:-1]):
        if count >= MOST_NAMES:
            raise Refused(f"the workspace holds more than {MOST_NAMES} files")
        try:
            size, modified, mode, name = record.split(b" ", _FIELDS)
            seconds, _, fraction = modified.partition(b".")
            written = int(seconds) * SECOND + int(fraction[:9].ljust(9, b"0") or 0)
            seen = Seen(int(size), written, int(mode, 8) & _PERMISSIONS)
            path = name.decode()
        except UnicodeDecodeError:
            continue  # no path that HTTP or a tool could name
        except ValueError as error:
            raise Unreachable(f"the sandbox says of a file: {record[:200]!r}") from error
        if is_plain(path):
            yield path, seen


def is_plain(path: str) -> bool:
    """Whether a path stays below the workspace, word for word."""
    parts = PurePosixPath(path).parts
    return bool(parts) and len(path) <= LONGEST_PATH and "/".join(parts) == path and ".." not in parts


async def fetch(sandbox: Sandbox, paths: Sequence[str], into: IO[bytes], *, limit: int) -> None:
    """Bring a tar of the paths, at most `limit` bytes of it, into an open file."""
    names = "".join(f"./{path}\0" for path in paths).encode()
    pack = f"tar --format=pax --no-recursion --ignore-failed-read --null -T - -cf - 2>{STAGE}/log"
    split = f"split -b {PART} -a 5 - {STAGE}/part."
    script = f"rm -rf {STAGE}; mkdir -m 700 {STAGE} && {pack} | {split}; ls {STAGE} | grep -c ^part; true"
    try:
        result = await _fine_run(sandbox, script, stdin=names)
        async for chunk in _parts(sandbox, int(result.stdout or b"0"), limit):
            into.write(chunk)
    except ValueError as error:
        raise Unreachable("the sandbox does not say how much it packed") from error
    finally:
        await _cleaned(sandbox)


async def _parts(sandbox: Sandbox, count: int, limit: int) -> AsyncIterator[bytes]:
    if count > limit // PART + 2:
        raise Refused("the sandbox packed more than was asked for")
    for number in range(count):
        yield await sandbox.read(f"{STAGE}/part.{_suffix(number)}", limit=PART)


def _suffix(number: int) -> str:
    """Return the suffix that split(1) gives the part of a number: five letters."""
    letters = []
    for _ in range(5):
        number, letter = divmod(number, 26)
        letters.append(chr(ord("a") + letter))
    return "".join(reversed(letters))


def unpacked(archive: IO[bytes], wanted: Listing) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a fetched archive that were asked for, no larger than they were said to be."""
    left = set(wanted)
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            for member in tar:
                path = member.name.removeprefix("./")
                if path not in left or not member.isreg() or member.size > wanted[path].size:
                    continue
                left.discard(path)
                content = tar.extractfile(member)
                yield path, content.read() if content else b""
    except tarfile.TarError as error:
        raise Unreachable(f"the sandbox's archive cannot be read: {error}") from error


class Packing:
    """A tar being written; `expected` says how its files will look inside once it is unpacked."""

    def __init__(self, into: IO[bytes]) -> None:
        self.expected: dict[str, Seen] = {}
        self._tar = tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - in __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._tar.close()

    def add(self, path: str, content: bytes, was: Seen) -> None:
        """Add a file."""
        member = tarfile.TarInfo(f"./{path}")
        member.size, member.mtime = len(content), was.modified // SECOND
        member.mode = was.mode & _PERMISSIONS
        self._tar.addfile(member, io.BytesIO(content))
        self.expected[path] = Seen(len(content), member.mtime * SECOND, member.mode)


async def put(sandbox: Sandbox, archive: IO[bytes]) -> None:
    """Unpack a tar of ours in the workspace; it is carried in parts."""
    script = f"mkdir -p -m 700 {STAGE} && cat >>{STAGE}/all"
    unpack = f"tar --no-same-owner --unlink-first -xpf {STAGE}/all; true"
    try:
        await _fine_run(sandbox, f"rm -rf {STAGE}")
        while chunk := archive.read(PART):
            await _fine_run(sandbox, script, stdin=chunk)
        await _fine_run(sandbox, unpack)
    finally:
        await _cleaned(sandbox)


async def remove(sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Remove files of the workspace, and the directories that are empty then."""
    names = "".join(f"./{path}\0" for path in paths).encode()
    each = 'rm -f -- "$one"; rmdir -p --ignore-fail-on-non-empty -- "${one%/*}" 2>/dev/null'
    await _fine_run(sandbox, f"while IFS= read -r -d '' one; do {each}; done; true", stdin=names)


async def _cleaned(sandbox: Sandbox) -> None:
    await sandbox.run(Command(script=f"rm -rf {shlex.quote(STAGE)}", timeout=PATIENCE))


async def _fine_run(sandbox: Sandbox, script: str, *, stdin: bytes = b"") -> Result:
    return _fine(await sandbox.run(Command(script=script, stdin=stdin, timeout=PATIENCE)))


def _fine(result: Result) -> Result:
    if result.ok:
        return result
    said = result.stderr[-300:].decode(errors="replace").strip()
    why = "it took too long" if result.timed_out else said or f"exit code {result.exit_code}"
    raise Refused(f"the workspace's files could not be carried: {why}")
