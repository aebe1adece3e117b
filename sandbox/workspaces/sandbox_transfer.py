"""List, fetch, write and remove workspace files inside a sandbox through the port alone.

The sandbox's answers are untrusted: its listing is bounded and validated, and of its archive only files,
links and directories that were requested are accepted, as what they were listed, with a limited size.
"""

from __future__ import annotations

import io
import shlex
import stat
import tarfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import PurePosixPath
from typing import IO, Self

from sandbox.errors import ProviderRefused, ProviderUnreachable
from sandbox.model import OUTPUT_CAP, ExecRequest, ExecResult
from sandbox.port import Sandbox
from sandbox.workspaces.sync_plan import EMPTY_DIRECTORY, NANOSECONDS_PER_SECOND, FileListing, FileStat

STAGING_DIRECTORY = ".dovecote-sync"
"""Our directory in the workspace, which exists only during a transfer."""

PART_BYTES = 4 * 1024 * 1024
MAX_LISTING_BYTES = 32 * 1024 * 1024
MAX_NAMES = 200_000
MAX_PATH_LENGTH = 4096
TIMEOUT_SECONDS = 300.0
_PERMISSIONS = 0o755
_KINDS = r"\( -type f -o -type l -o -type d -empty \)"
_LIST = rf"find . -path ./{STAGING_DIRECTORY} -prune -o {_KINDS} -printf '%y %s %T@ %m %P\0'"
_FIELDS = 4


async def list_files(sandbox: Sandbox) -> FileListing:
    """Return the regular files, links and empty directories of the workspace."""
    result = await sandbox.run(ExecRequest(script=_LIST, output_limit=OUTPUT_CAP, timeout=TIMEOUT_SECONDS))
    if not result.stdout_truncated:
        return dict(_parse_listing(_check_result(result).stdout))
    await _run_checked(
        sandbox,
        f"rm -rf {STAGING_DIRECTORY}; mkdir -m 700 {STAGING_DIRECTORY} && {_LIST} >{STAGING_DIRECTORY}/list",
    )
    try:
        raw = await sandbox.read(f"{STAGING_DIRECTORY}/list", limit=MAX_LISTING_BYTES)
    finally:
        await _clean_up(sandbox)
    if len(raw) >= MAX_LISTING_BYTES:
        raise ProviderRefused("the workspace holds more names than can be listed")
    return dict(_parse_listing(raw))


def _parse_listing(raw: bytes) -> Iterator[tuple[str, FileStat]]:
    for count, record in enumerate(raw.split(b"\0")[:-1]):
        if count >= MAX_NAMES:
            raise ProviderRefused(f"the workspace holds more than {MAX_NAMES} files")
        try:
            kind, size, modified, mode, name = record.split(b" ", _FIELDS)
            seen = _parse_stat(kind, size, modified, mode)
            path = name.decode()
        except UnicodeDecodeError:
            continue  # HTTP and tools could not name this path
        except ValueError as error:
            raise ProviderUnreachable(f"invalid file listing from the sandbox: {record[:200]!r}") from error
        if is_plain_path(path):
            yield path, seen


def _parse_stat(kind: bytes, size: bytes, modified: bytes, mode: bytes) -> FileStat:
    if kind == b"d":
        return EMPTY_DIRECTORY
    seconds, _, fraction = modified.partition(b".")
    written = int(seconds) * NANOSECONDS_PER_SECOND + int(fraction[:9].ljust(9, b"0") or 0)
    permissions = stat.S_IFLNK if kind == b"l" else int(mode, 8) & _PERMISSIONS
    return FileStat(int(size), written, permissions)


def is_plain_path(path: str) -> bool:
    """Return whether a path stays below the workspace textually."""
    parts = PurePosixPath(path).parts
    return bool(parts) and len(path) <= MAX_PATH_LENGTH and "/".join(parts) == path and ".." not in parts


async def fetch(sandbox: Sandbox, paths: Sequence[str], into: IO[bytes], *, limit: int) -> None:
    """Fetch a tar of the paths, at most `limit` bytes, into an open file."""
    names = "".join(f"./{path}\0" for path in paths).encode()
    pack = f"tar --format=pax --no-recursion --ignore-failed-read --null -T - -cf - 2>{STAGING_DIRECTORY}/log"
    split = f"split -b {PART_BYTES} -a 5 - {STAGING_DIRECTORY}/part."
    fresh = f"rm -rf {STAGING_DIRECTORY}; mkdir -m 700 {STAGING_DIRECTORY}"
    script = f"{fresh} && {pack} | {split}; ls {STAGING_DIRECTORY} | grep -c ^part; true"
    try:
        result = await _run_checked(sandbox, script, stdin=names)
        async for chunk in _parts(sandbox, int(result.stdout or b"0"), limit):
            into.write(chunk)
    except ValueError as error:
        raise ProviderUnreachable("the sandbox did not report how much it packed") from error
    finally:
        await _clean_up(sandbox)


async def _parts(sandbox: Sandbox, count: int, limit: int) -> AsyncIterator[bytes]:
    if count > limit // PART_BYTES + 2:
        raise ProviderRefused("the sandbox packed more than was asked for")
    for number in range(count):
        yield await sandbox.read(f"{STAGING_DIRECTORY}/part.{_suffix(number)}", limit=PART_BYTES)


def _suffix(number: int) -> str:
    """Return the suffix that split(1) gives the part of a number: five letters."""
    letters = []
    for _ in range(5):
        number, letter = divmod(number, 26)
        letters.append(chr(ord("a") + letter))
    return "".join(reversed(letters))


def read_archive(archive: IO[bytes], files: FileListing) -> Iterator[tuple[str, bytes]]:
    """Yield the requested files of a fetched archive, none larger than its listed size."""
    left = set(files)
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            for member in tar:
                path = member.name.removeprefix("./")
                if path not in left or (content := _content_of(tar, member, files[path])) is None:
                    continue
                left.discard(path)
                yield path, content
    except tarfile.TarError as error:
        raise ProviderUnreachable(f"the sandbox's archive cannot be read: {error}") from error


def _content_of(tar: tarfile.TarFile, member: tarfile.TarInfo, listed: FileStat) -> bytes | None:
    """Return the content of a member, or the target of a link; None if it is not what was listed."""
    if listed.is_directory:
        return b"" if member.isdir() else None
    if listed.is_link:
        target = member.linkname.encode("utf-8", "surrogateescape")
        return target if member.issym() and len(target) <= listed.size else None
    if not member.isreg() or member.size > listed.size:
        return None
    file = tar.extractfile(member)
    return file.read() if file else b""


class TarWriter:
    """A tar being written; `expected` describes its files after unpacking."""

    def __init__(self, into: IO[bytes]) -> None:
        self.expected: dict[str, FileStat] = {}
        self._tar = tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - in __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._tar.close()

    def add(self, path: str, content: bytes, seen: FileStat) -> None:
        """Add a file, a link whose target is the content, or an empty directory."""
        member = tarfile.TarInfo(f"./{path}")
        member.mtime = seen.modified // NANOSECONDS_PER_SECOND
        written = member.mtime * NANOSECONDS_PER_SECOND
        if seen.is_directory:
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            self.expected[path] = EMPTY_DIRECTORY
        elif seen.is_link:
            member.type, member.linkname = tarfile.SYMTYPE, content.decode("utf-8", "surrogateescape")
            self.expected[path] = FileStat(len(content), written, stat.S_IFLNK)
        else:
            member.size, member.mode = len(content), seen.mode & _PERMISSIONS
            self.expected[path] = FileStat(len(content), written, member.mode)
        self._tar.addfile(member, io.BytesIO(content) if seen.is_regular else None)


async def write_archive(sandbox: Sandbox, archive: IO[bytes]) -> None:
    """Unpack a tar of ours in the workspace; it is uploaded in parts."""
    script = f"mkdir -p -m 700 {STAGING_DIRECTORY} && cat >>{STAGING_DIRECTORY}/all"
    unpack = f"tar --no-same-owner --unlink-first -xpf {STAGING_DIRECTORY}/all; true"
    try:
        await _run_checked(sandbox, f"rm -rf {STAGING_DIRECTORY}")
        while chunk := archive.read(PART_BYTES):
            await _run_checked(sandbox, script, stdin=chunk)
        await _run_checked(sandbox, unpack)
    finally:
        await _clean_up(sandbox)


async def remove(sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Remove files and empty directories of the workspace, and directories that become empty."""
    names = "".join(f"./{path}\0" for path in paths).encode()
    each = 'rm -fd -- "$one" 2>/dev/null; rmdir -p --ignore-fail-on-non-empty -- "${one%/*}" 2>/dev/null'
    await _run_checked(sandbox, f"while IFS= read -r -d '' one; do {each}; done; true", stdin=names)


async def _clean_up(sandbox: Sandbox) -> None:
    await sandbox.run(ExecRequest(script=f"rm -rf {shlex.quote(STAGING_DIRECTORY)}", timeout=TIMEOUT_SECONDS))


async def _run_checked(sandbox: Sandbox, script: str, *, stdin: bytes = b"") -> ExecResult:
    return _check_result(await sandbox.run(ExecRequest(script=script, stdin=stdin, timeout=TIMEOUT_SECONDS)))


def _check_result(result: ExecResult) -> ExecResult:
    if result.ok:
        return result
    message = result.stderr[-300:].decode(errors="replace").strip()
    why = "it timed out" if result.timed_out else message or f"exit code {result.exit_code}"
    raise ProviderRefused(f"the workspace's files could not be synced: {why}")
