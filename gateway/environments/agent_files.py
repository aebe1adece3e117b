"""Bundles: what an agent brings into its workspace, and skills it can load there.

An agent's AGENTS.md stands in its instructions as well; the rest (skills/, subagents/, knowledge/) is put
into the workspace before the first tool of a turn works in it, unless what is there is the same already.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from delivery.database.engine import Database
from gateway.agents.port import Persona
from gateway.environments.resolver import Bench, Workbench
from gateway.records.kinds import SkillConfig
from gateway.store.accounts import agent_files as store
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from sandbox.exec.shell_files import ShellFiles
from sandbox.port import Sandbox

GUIDE = "AGENTS.md"
PLACES = ("skills/", "subagents/", "knowledge/")
"""Besides the guide, what an agent's files may be below."""

STAGED_SKILLS = ".claude/skills"
MARKS = ".dovecote"
LONGEST_MARK = 256 * 1024
LONGEST_GUIDE = 64 * 1024
SKILLS_KEPT = 2.0
_REMEMBERED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill of the account that can be loaded."""

    name: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What an agent's files were when its record was changed last: hashes by path, and the guide."""

    changed_at: datetime
    files: Mapping[str, str]
    guide: str

    @property
    def digest(self) -> str:
        """One word for all of it."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()


class Bundles:
    """Knows the files of agents and skills and puts them where they are wanted."""

    def __init__(
        self, database: Database, workbench: Workbench, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._workbench = workbench
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._staged: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._skills: OrderedDict[str, tuple[float, Sequence[Skill]]] = OrderedDict()
        self._clock = clock

    async def instructed(self, agent: Record, persona: Persona) -> Persona:
        """Return the persona with its guide before its instructions."""
        guide = (await self._know(agent)).guide
        if not guide:
            return persona
        return replace(persona, instructions=f"{guide}\n\n{persona.instructions}".rstrip())

    async def _know(self, agent: Record) -> _Known:
        known = self._known.get(agent.id)
        if known is not None and known.changed_at == agent.updated_at:
            return known
        async with self._database.read() as connection:
            held = await store.listed(connection, agent.id)
            guide = await store.content(connection, agent.id, GUIDE) if held else None
        known = _Known(
            changed_at=agent.updated_at,
            files={one.path: one.sha256 for one in held},
            guide=(guide or b"")[:LONGEST_GUIDE].decode("utf-8", "replace").strip(),
        )
        self._known[agent.id] = known
        _bound(self._known)
        return known

    async def stage(self, agent: Record, bench: Bench) -> None:
        """Make the agent's files stand in the workspace of a bench; raises SandboxError."""
        known = await self._know(agent)
        if not known.files or bench.workspace is None or bench.spec.read_only:
            return
        place = (bench.spec.label, agent.id)
        if self._staged.get(place) == known.digest:
            return
        await self._sync(agent, known, await self._workbench.sandbox(bench))
        self._staged[place] = known.digest
        _bound(self._staged)

    async def _sync(self, agent: Record, known: _Known, sandbox: Sandbox) -> None:
        mark = f"{MARKS}/{agent.id}.json"
        there = await _marked(sandbox, mark)
        if there == known.files:
            return
        async with self._database.read() as connection:
            contents = await store.contents(connection, agent.id)
        for path in sorted(set(there) - set(known.files)):
            await _gone(ShellFiles(run=sandbox.run, root="."), path)
        for path, digest in known.files.items():
            if there.get(path) != digest and path in contents:
                await sandbox.write(path, contents[path])
        await sandbox.write(mark, json.dumps(dict(known.files), sort_keys=True).encode())

    async def skills(self, account: str) -> Sequence[Skill]:
        """Return the account's skills, as they were some seconds ago at the most."""
        until, known = self._skills.get(account, (0.0, ()))
        if until < self._clock():
            known = await self._look_up(account)
            self._skills[account] = (self._clock() + SKILLS_KEPT, known)
            _bound(self._skills)
        return known

    async def _look_up(self, account: str) -> Sequence[Skill]:
        async with self._database.read() as connection:
            found = await records.list_of(connection, account, "skill")
        return [
            Skill(name=one.name, description=SkillConfig.model_validate(one.config).description)
            for one in found
        ]

    async def load(self, account: str, name: str, sandbox: Sandbox) -> Mapping[str, bytes] | None:
        """Put a skill's files into the workspace and return them; None when there is no such skill."""
        async with self._database.read() as connection:
            skill = await records.find(connection, account, "skill", name)
            if skill is None:
                return None
            contents = await store.contents(connection, skill.id)
        for path, content in contents.items():
            await sandbox.write(f"{STAGED_SKILLS}/{skill.name}/{path}", content)
        return contents


async def _marked(sandbox: Sandbox, mark: str) -> dict[str, str]:
    """Return what the mark in the workspace says is there; nothing where it makes no sense."""
    try:
        said = json.loads(await sandbox.read(mark, limit=LONGEST_MARK))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {path: digest for path, digest in said.items() if isinstance(digest, str)}


async def _gone(files: ShellFiles, path: str) -> None:
    try:
        await files.remove(path)
    except (FileNotFoundError, NotADirectoryError):
        return


def _bound(known: OrderedDict[Any, Any]) -> None:
    while len(known) > _REMEMBERED:
        known.popitem(last=False)
