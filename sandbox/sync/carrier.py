"""Carrying a workspace's files between the store and a sandbox that cannot mount it.

What both sides held last time stands beside the store, one file for each label: so a removal is told from a
file that was never there. A new machine begins with nothing, whatever its label held before.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from sandbox.errors import Refused
from sandbox.host.order import write_durably
from sandbox.model import Spec
from sandbox.port import Sandbox
from sandbox.scope import digest
from sandbox.sync import inside, stored
from sandbox.sync.plan import Base, Listing, Plan, Seen, bounded, plan

log = structlog.get_logger(__name__)

OVERHEAD = 8 * 1024
"""Bytes that a file may take in an archive beyond its content: its header, and a long name."""

SPOOL = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """Both sides before anything is carried."""

    sandbox: Sandbox
    directory: Path
    stored: Listing
    inside: Listing


class Carrier:
    """Makes store and sandbox the same, at most `limit` bytes of content at a time.

    `directory` holds what both sides held last.
    """

    def __init__(self, directory: Path, *, limit: int) -> None:
        self._directory = directory
        self._limit = limit

    async def carry(self, sandbox: Sandbox, spec: Spec) -> None:
        """Bring to each side what changed on the other; raises SandboxError."""
        if spec.workspace is None:
            return
        try:
            await self._carry(sandbox, spec, spec.workspace)
        except OSError as error:
            raise Refused(f"the workspace's files could not be carried: {error}") from error

    async def _carry(self, sandbox: Sandbox, spec: Spec, directory: Path) -> None:
        base = await asyncio.to_thread(self._base, spec.label, str(sandbox.id))
        sides = _Sides(
            sandbox=sandbox,
            directory=directory,
            stored=await asyncio.to_thread(stored.listing, directory),
            inside=await inside.listing(sandbox),
        )
        todo = plan(base, sides.stored, sides.inside, read_only=spec.read_only)
        put = await self._put(sides, todo)
        fetched = await self._fetch(sides, todo)
        await self._remove(sides, todo)
        after = _agreed(str(sandbox.id), sides, todo, put=put, fetched=fetched, base=base)
        if after != base:
            await asyncio.to_thread(self._keep, spec.label, after)

    def forget(self, label: str) -> None:
        """Forget what a sandbox held that is no more."""
        self._path(label).unlink(missing_ok=True)

    async def _put(self, sides: _Sides, todo: Plan) -> Listing:
        """Put into the sandbox what the store has; returns how it looks there."""
        if not todo.put:
            return {}
        wanted = {path: sides.stored[path] for path in todo.put}
        if (size := sum(seen.size for seen in wanted.values())) > self._limit:
            raise Refused(
                f"the workspace holds {size} bytes that the sandbox lacks, and at most {self._limit} are "
                "carried at a time: remove files over HTTP, or raise sandbox.sync_limit_mb"
            )
        with tempfile.SpooledTemporaryFile(SPOOL) as archive:
            expected = await asyncio.to_thread(stored.pack, sides.directory, wanted, archive)
            archive.seek(0)
            await inside.put(sides.sandbox, archive)
        now = await inside.listing(sides.sandbox)
        return {path: seen for path, seen in expected.items() if now.get(path) == seen}

    async def _fetch(self, sides: _Sides, todo: Plan) -> Listing:
        """Bring into the store what the sandbox has; returns how it looks there. What is too much waits."""
        chosen = tuple(bounded(todo.fetched, sides.inside, limit=self._limit))
        if len(chosen) < len(todo.fetched):
            left = sorted(set(todo.fetched) - set(chosen))
            log.warning("workspace.left_in_sandbox", files=len(left), first=left[0], limit=self._limit)
        if not chosen:
            return {}
        wanted = {path: sides.inside[path] for path in chosen}
        most = sum(seen.size for seen in wanted.values()) + len(wanted) * OVERHEAD
        with tempfile.SpooledTemporaryFile(SPOOL) as archive:
            await inside.fetch(sides.sandbox, chosen, archive, limit=most)
            archive.seek(0)
            written = await asyncio.to_thread(stored.unpack, sides.directory, archive, wanted)
        now = await asyncio.to_thread(stored.listing, sides.directory)
        return {path: now[path] for path in written if path in now}

    async def _remove(self, sides: _Sides, todo: Plan) -> None:
        if todo.removed_inside:
            await inside.remove(sides.sandbox, todo.removed_inside)
        if todo.removed_stored:
            await asyncio.to_thread(stored.remove, sides.directory, todo.removed_stored)

    def _path(self, label: str) -> Path:
        return self._directory / f"{digest('sync', label)}.json"

    def _base(self, label: str, sandbox: str) -> Base:
        try:
            raw = json.loads(self._path(label).read_bytes())
            base = Base(sandbox=raw["sandbox"], stored=_seen(raw["stored"]), inside=_seen(raw["inside"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return Base(sandbox=sandbox)
        return base if base.sandbox == sandbox else Base(sandbox=sandbox)

    def _keep(self, label: str, base: Base) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._path(label), json.dumps(asdict(base)).encode())


def _seen(raw: dict[str, Sequence[int]]) -> Listing:
    return {path: Seen(*numbers) for path, numbers in raw.items()}


def _agreed(sandbox: str, sides: _Sides, todo: Plan, *, put: Listing, fetched: Listing, base: Base) -> Base:
    """Return what both sides hold now; of what could not be carried, what they held before."""
    open_ = {*todo.put, *todo.fetched} - put.keys() - fetched.keys()
    gone = {*todo.removed_inside, *todo.removed_stored}
    both = (sides.stored.keys() & sides.inside.keys() | put.keys() | fetched.keys()) - open_ - gone
    here = {path: fetched.get(path) or sides.stored[path] for path in both}
    there = {path: put.get(path) or sides.inside[path] for path in both}
    kept = open_ & base.stored.keys()
    return Base(
        sandbox=sandbox,
        stored={**here, **{path: base.stored[path] for path in kept}},
        inside={**there, **{path: base.inside[path] for path in kept}},
    )
