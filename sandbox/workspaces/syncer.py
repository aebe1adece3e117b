"""Carrying a workspace's files between the store and a sandbox that cannot mount it.

What both sides held last time is kept for each label: so a removal is told from a file that was never there.
A new machine begins with nothing, whatever its label held before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from sandbox.errors import Refused
from sandbox.model import Spec
from sandbox.port import Sandbox
from sandbox.workspaces.baselines import Bases
from sandbox.workspaces.port import Store
from sandbox.workspaces.replica import Side
from sandbox.workspaces.sandbox_replica import Box
from sandbox.workspaces.sync_plan import Base, Listing, Plan, Seen, bounded, disputed, plan

log = structlog.get_logger(__name__)


def unnoticed(_point: str) -> None:
    """Pass a fault point that nobody has chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Both sides before anything is carried, and what they agreed on last."""

    here: Side
    there: Side
    base: Base
    stored: Listing
    inside: Listing


class Carrier:
    """Makes store and sandbox the same, at most `limit` bytes of content at a time."""

    def __init__(
        self, store: Store, bases: Bases, *, limit: int, checkpoint: Callable[[str], None] = unnoticed
    ) -> None:
        self.store = store
        self.bases = bases
        self._limit = limit
        self._checkpoint = checkpoint

    async def carry(self, sandbox: Sandbox, spec: Spec) -> None:
        """Bring to each side what changed on the other; raises SandboxError."""
        if spec.workspace is None:
            return
        try:
            await self.between(
                spec.label,
                Base(sandbox=str(sandbox.id)),
                self.store.side(spec.namespace),
                Box(sandbox),
                read_only=spec.read_only,
            )
        except OSError as error:
            raise Refused(f"the workspace's files could not be carried: {error}") from error

    async def kept(self, spec: Spec) -> None:
        """See to it that what a call changed is safe before the call is told of.

        Here it is: what commands write stays with the machine until the turn's end.
        """
        del spec

    async def forget(self, label: str) -> None:
        """Forget what a sandbox held that is no more."""
        await self.bases.forget(label)

    async def between(self, key: str, fresh: Base, here: Side, there: Side, *, read_only: bool) -> Base:
        """Make both sides the same and return what they agree on now; `fresh` is what a new machine holds."""
        last = await self.bases.find(key)
        base = last if last is not None and last.sandbox == fresh.sandbox else fresh
        sides = Sides(
            here=here, there=there, base=base, stored=await here.listing(), inside=await there.listing()
        )
        sides = await _compared(sides)
        todo = plan(sides.base, sides.stored, sides.inside, read_only=read_only)
        put = await self._put(sides, todo)
        if todo.fetched or todo.removed_stored:
            self._checkpoint("workspace.carry.before_store")
        fetched = await self._fetch(sides, todo)
        await _remove(sides, todo)
        if todo.fetched or todo.removed_stored:
            self._checkpoint("workspace.carry.after_store")
        after = _agreed(sides, todo, put=put, fetched=fetched)
        if after != last:
            await there.settle()
            await self.bases.keep(key, after)
        return after

    async def _put(self, sides: Sides, todo: Plan) -> Listing:
        """Put into the sandbox what the store has; returns how it looks there."""
        if not todo.put:
            return {}
        wanted = {path: sides.stored[path] for path in todo.put}
        if (size := sum(seen.size for seen in wanted.values())) > self._limit:
            raise Refused(
                f"the workspace holds {size} bytes that the sandbox lacks, and at most {self._limit} are "
                "carried at a time: remove files over HTTP, or raise sandbox.sync_limit_mb"
            )
        return await sides.there.take(sides.here.contents(wanted))

    async def _fetch(self, sides: Sides, todo: Plan) -> Listing:
        """Bring into the store what the sandbox has; returns how it looks there. What is too much waits."""
        chosen = tuple(bounded(todo.fetched, sides.inside, limit=self._limit))
        if len(chosen) < len(todo.fetched):
            left = sorted(set(todo.fetched) - set(chosen))
            log.warning("workspace.left_in_sandbox", files=len(left), first=left[0], limit=self._limit)
        if not chosen:
            return {}
        return await sides.here.take(sides.there.contents({path: sides.inside[path] for path in chosen}))


async def _remove(sides: Sides, todo: Plan) -> None:
    if todo.removed_inside:
        await sides.there.remove(todo.removed_inside)
    if todo.removed_stored:
        await sides.here.remove(todo.removed_stored)


async def _compared(sides: Sides) -> Sides:
    """Take what both sides hold alike for agreed, though nobody remembers that it was carried."""
    open_ = [path for path in disputed(sides.base, sides.stored, sides.inside) if sides.stored[path].mark]
    if not open_:
        return sides
    found = await sides.there.digests(open_)
    alike = [path for path in open_ if found.get(path) == sides.stored[path].mark]
    base = replace(
        sides.base,
        stored={**sides.base.stored, **{path: sides.stored[path] for path in alike}},
        inside={**sides.base.inside, **{path: sides.inside[path] for path in alike}},
    )
    return replace(sides, base=base)


def _agreed(sides: Sides, todo: Plan, *, put: Listing, fetched: Listing) -> Base:
    """Return what both sides hold now; of what could not be carried, what they held before."""
    base = sides.base
    open_ = {*todo.put, *todo.fetched} - put.keys() - fetched.keys()
    gone = {*todo.removed_inside, *todo.removed_stored}
    both = (sides.stored.keys() & sides.inside.keys() | put.keys() | fetched.keys()) - open_ - gone
    kept = open_ & base.stored.keys() & base.inside.keys()
    return Base(
        sandbox=base.sandbox,
        stored={**_now(sides.stored, fetched, both), **{path: base.stored[path] for path in kept}},
        inside={**_now(sides.inside, put, both), **{path: base.inside[path] for path in kept}},
    )


def _now(before: Listing, taken: Listing, paths: set[str]) -> Mapping[str, Seen]:
    return {path: taken.get(path) or before[path] for path in paths}
