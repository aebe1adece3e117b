"""Save and restore a container's HOME and the changed files of its image.

The engine packs and unpacks, confined to the container. The packed members are validated here.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import shlex
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any

import aiohttp

from sandbox.docker import tar_members
from sandbox.docker.container import HOME
from sandbox.docker.engine import Engine
from sandbox.docker.errors import translate_errors
from sandbox.errors import ProviderRefused, SandboxGone
from sandbox.model import ExecResult, SandboxId

MAX_BYTES = 4 * 1024**3
"""The most bytes that are saved or restored, unpacked."""

MAX_PATHS = 2000
"""The most changed paths of the image that are saved."""

_CHUNK = 256 * 1024
_UNLIMITED = aiohttp.ClientTimeout(total=None, sock_read=120)
_DIRECTORY = 1 << 31
_ADDED, _DELETED = 1, 2
_STAMP_SCRIPT = """
[ -z "$(find "$@" -newerct '1 second ago' -print -quit)" ] || exit 3
set -o pipefail
find "$@" -printf '%p\\0%i %m %s %T@ %C@ %l\\0' | sort -z | sha256sum
"""
"""It fails without GNU find, and if a file was changed just now: within a tick of the clock, times stay."""
_EXCLUDED = (HOME, "/tmp", "/mnt", "/run", "/proc", "/dev", "/sys", "/var/run", "/var/tmp")  # noqa: S108
_ENGINE_FILES = {"/.dockerenv", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerArchives:
    """The archives of one container."""

    engine: Engine
    sandbox_id: SandboxId

    def _url(self, what: str) -> str:
        return f"{self.engine.base}/containers/{self.sandbox_id}/{what}"

    async def changed_paths(self) -> list[str]:
        """Return the topmost paths where files of the image were added or changed."""
        with translate_errors():
            async with self.engine.session.get(self._url("changes")) as response:
                listing: list[dict[str, Any]] | None = await response.json() if response.ok else None
        if listing is None:
            raise SandboxGone
        mounts = (await self.engine.inspect(self.sandbox_id)).get("Mounts") or ()
        elsewhere = (*_EXCLUDED, *(mount["Destination"] for mount in mounts))
        paths = topmost_changes(((one["Path"], one["Kind"]) for one in listing), elsewhere)
        found = [path for path, whole in paths if whole or not await self._is_directory(path)]
        if len(found) > MAX_PATHS:
            raise ProviderRefused(
                f"{len(found)} paths of the image were changed, too many to save: store files in HOME"
            )
        return found

    async def _is_directory(self, path: str) -> bool:
        with translate_errors():
            async with self.engine.session.head(self._url("archive"), params={"path": path}) as response:
                listing = response.headers.get("X-Docker-Container-Path-Stat", "")
        return not listing or bool(json.loads(base64.b64decode(listing))["mode"] & _DIRECTORY)

    async def fetch(self, path: str, into: IO[bytes]) -> bool:
        """Write the engine's tar of a path to a file; return False if there is none."""
        size = 0
        with translate_errors():
            where = {"path": path}
            async with self.engine.session.get(
                self._url("archive"), params=where, timeout=_UNLIMITED
            ) as response:
                if not response.ok:
                    return False
                async for chunk in response.content.iter_chunked(_CHUNK):
                    size += len(chunk)
                    if size > MAX_BYTES:
                        raise ProviderRefused("the sandbox holds more than can be saved")
                    await asyncio.to_thread(into.write, chunk)
        into.seek(0)
        return True

    async def write(self, path: str, content: IO[bytes]) -> None:
        """Let the engine unpack a tar below a directory of the container."""
        content.seek(0)
        with translate_errors():
            async with self.engine.session.put(
                self._url("archive"), params={"path": path}, data=_chunks(content), timeout=_UNLIMITED
            ) as response:
                if not response.ok:
                    raise ProviderRefused(
                        f"the engine could not unpack the snapshot: {(await response.text())[:500]}"
                    )


def topmost_changes(
    changes: Iterable[tuple[str, int]], excluded: Sequence[str] = _EXCLUDED
) -> list[tuple[str, bool]]:
    """Return the changed paths, each with whether it is saved with everything below; mounts are excluded."""
    changed = sorted(
        (path, kind) for path, kind in changes if kind != _DELETED and not _is_excluded(path, excluded)
    )
    parents = {path.rpartition("/")[0] for path, _ in changed}
    found: list[tuple[str, bool]] = []
    for path, kind in changed:
        if found and found[-1][1] and path.startswith(f"{found[-1][0]}/"):
            continue
        if kind == _ADDED:
            found.append((path, True))
        elif path not in parents:
            found.append((path, False))
    return found


def _is_excluded(path: str, excluded: Sequence[str]) -> bool:
    """Return whether a path is a mount, the engine's own, or a parent of such a path."""
    return path in _ENGINE_FILES or any(
        path == place or path.startswith(f"{place}/") or place.startswith(f"{path}/") for place in excluded
    )


async def stamp(
    engine: Engine, sandbox_id: SandboxId, run: Callable[[str], Awaitable[ExecResult]]
) -> str | None:
    """Return a digest of the names, sizes and times of what `save` packs; None if the container sleeps."""
    state = (await engine.inspect(sandbox_id))["State"]
    if not state.get("Running") or state.get("Paused"):
        return None
    paths = await ContainerArchives(engine=engine, sandbox_id=sandbox_id).changed_paths()
    words = " ".join(shlex.quote(path) for path in (HOME, *paths))
    result = await run(f"set -- {words}\n{_STAMP_SCRIPT}")
    return hashlib.sha256(result.stdout).hexdigest() if result.ok else None


async def save(engine: Engine, sandbox_id: SandboxId, *, persistent: bool) -> AsyncIterator[bytes]:
    """Yield a gzip tar of HOME (below `home/`) and of the changed files (below `root/`).

    The same files always give the same bytes, so that they are not stored again.
    """
    archives = ContainerArchives(engine=engine, sandbox_id=sandbox_id)
    sources = [(HOME, tar_members.HOME)] if persistent else []
    sources += [(path, tar_members.ROOT + path.rpartition("/")[0]) for path in await archives.changed_paths()]
    with TemporaryFile() as packed:
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0, filename="") as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as target,
        ):
            for path, below in sources:
                with TemporaryFile() as fetched:
                    if await archives.fetch(path, fetched):
                        await asyncio.to_thread(_copy_members, fetched, target, below, strip_top=path == HOME)
        packed.seek(0)
        async for chunk in _chunks(packed):
            yield chunk


def _copy_members(fetched: IO[bytes], target: tarfile.TarFile, below: str, *, strip_top: bool) -> None:
    """Add the members that the engine packed, renamed below another directory."""
    with tarfile.open(fileobj=fetched, mode="r:") as source:
        for member in source:
            name = member.name.partition("/")[2] if strip_top else member.name
            linked = member.linkname.partition("/")[2] if strip_top else member.linkname
            entry = tar_members.repack(member, f"{below}/{name}", f"{below}/{linked}")
            if name and entry is not None:
                target.addfile(entry, source.extractfile(member) if entry.isreg() else None)


async def restore(engine: Engine, sandbox_id: SandboxId, user: str, archive: AsyncIterator[bytes]) -> None:
    """Unpack what `save` yielded; raises UnsafePath for an archive with paths that lead outside."""
    archives = ContainerArchives(engine=engine, sandbox_id=sandbox_id)
    with TemporaryFile() as packed, TemporaryFile() as home, TemporaryFile() as root:
        size = 0
        async for chunk in archive:
            size += len(chunk)
            if size > MAX_BYTES:
                raise ProviderRefused("the snapshot is larger than can be restored")
            await asyncio.to_thread(packed.write, chunk)
        packed.seek(0)
        filled = await asyncio.to_thread(
            tar_members.split_by_folder, packed, {tar_members.HOME: home, tar_members.ROOT: root}, user
        )
        for name, path, content in ((tar_members.ROOT, "/", root), (tar_members.HOME, HOME, home)):
            if name in filled:
                await archives.write(path, content)


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, _CHUNK):
        yield chunk
