"""Install an agent's files into its workspace, and load skills there.

AGENTS.md is also part of the agent's instructions. The other files (skills/, subagents/, knowledge/) are
written into the workspace before the first tool call of a turn, unless they are there already.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from delivery.database.engine import Database
from gateway.accounts.account_reader import AccountCache
from gateway.agents.port import AgentSpec
from gateway.environments.environment import Environment
from gateway.environments.resolver import EnvironmentResolver
from gateway.records.kinds import SkillConfig
from gateway.store.accounts import agent_files as store
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from sandbox.exec.shell_files import ShellFiles
from sandbox.port import Sandbox

INSTRUCTIONS_FILE = "AGENTS.md"
FOLDERS = ("skills/", "subagents/", "knowledge/")
"""Directories that an agent's files may be in, besides AGENTS.md."""

SKILLS_DIRECTORY = ".claude/skills"
MANIFEST_DIRECTORY = ".dovecote"
MAX_MANIFEST_BYTES = 256 * 1024
MAX_INSTRUCTIONS_BYTES = 64 * 1024
_CACHE_SIZE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill of the account that can be loaded."""

    name: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedFiles:
    """An agent's files at the last change of its record: hashes by path, and AGENTS.md."""

    changed_at: datetime
    files: Mapping[str, str]
    instructions: str

    @property
    def digest(self) -> str:
        """Return a hash of all files."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()


class AgentFiles:
    """Loads the files of agents and skills and installs them into workspaces."""

    def __init__(self, database: Database, environment_resolver: EnvironmentResolver) -> None:
        self._database = database
        self._environment_resolver = environment_resolver
        self._files: OrderedDict[str, _CachedFiles] = OrderedDict()
        self._installed: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._skills = AccountCache(_CACHE_SIZE)

    async def with_instructions(self, agent: Record, spec: AgentSpec) -> AgentSpec:
        """Return the spec with AGENTS.md before its instructions."""
        guide = (await self._load_files(agent)).instructions
        if not guide:
            return spec
        return replace(spec, instructions=f"{guide}\n\n{spec.instructions}".rstrip())

    async def _load_files(self, agent: Record) -> _CachedFiles:
        known = self._files.get(agent.id)
        if known is not None and known.changed_at == agent.updated_at:
            return known
        async with self._database.read() as connection:
            stored = await store.list_files(connection, agent.id)
            guide = await store.read(connection, agent.id, INSTRUCTIONS_FILE) if stored else None
        known = _CachedFiles(
            changed_at=agent.updated_at,
            files={one.path: one.sha256 for one in stored},
            instructions=(guide or b"")[:MAX_INSTRUCTIONS_BYTES].decode("utf-8", "replace").strip(),
        )
        self._files[agent.id] = known
        _evict_oldest(self._files)
        return known

    async def install(self, agent: Record, environment: Environment) -> None:
        """Install the agent's files into the workspace of an environment; raises SandboxError."""
        known = await self._load_files(agent)
        if not known.files or environment.workspace is None or environment.spec.read_only:
            return
        target = (environment.spec.label, agent.id)
        if self._installed.get(target) == known.digest:
            return
        await self._sync(agent, known, await self._environment_resolver.sandbox(environment))
        self._installed[target] = known.digest
        _evict_oldest(self._installed)

    async def _sync(self, agent: Record, wanted: _CachedFiles, sandbox: Sandbox) -> None:
        manifest = f"{MANIFEST_DIRECTORY}/{agent.id}.json"
        installed = await _read_manifest(sandbox, manifest)
        if installed == wanted.files:
            return
        async with self._database.read() as connection:
            contents = await store.read_all(connection, agent.id)
        await _delete_others(sandbox, installed, wanted.files)
        for path, digest in wanted.files.items():
            if installed.get(path) != digest and path in contents:
                await sandbox.write(path, contents[path])
        await sandbox.write(manifest, json.dumps(dict(wanted.files), sort_keys=True).encode())

    async def list_skills(self, account: str, revision: int) -> Sequence[Skill]:
        """Return the account's skills at its revision, which the claim of the turn has read, or later."""
        return await self._skills.get((account,), revision, partial(self._load_skills, account))

    async def _load_skills(self, account: str) -> Sequence[Skill]:
        async with self._database.read() as connection:
            found = await records.list_by_kind(connection, account, "skill")
        return [
            Skill(name=one.name, description=SkillConfig.model_validate(one.config).description)
            for one in found
        ]

    async def load_skill(self, account: str, name: str, sandbox: Sandbox) -> Mapping[str, bytes] | None:
        """Write a skill's files into the workspace and return them; None when there is no such skill.

        Files that an earlier load wrote and that the skill does not have any more are deleted.
        """
        async with self._database.read() as connection:
            skill = await records.get(connection, account, "skill", name)
            if skill is None:
                return None
            contents = await store.read_all(connection, skill.id)
        wanted = {f"{SKILLS_DIRECTORY}/{skill.name}/{path}": content for path, content in contents.items()}
        manifest = f"{MANIFEST_DIRECTORY}/{skill.id}.json"
        await _delete_others(sandbox, await _read_manifest(sandbox, manifest), wanted)
        for path, content in wanted.items():
            await sandbox.write(path, content)
        digests = {path: hashlib.sha256(content).hexdigest() for path, content in wanted.items()}
        await sandbox.write(manifest, json.dumps(digests, sort_keys=True).encode())
        return contents


async def _read_manifest(sandbox: Sandbox, manifest: str) -> dict[str, str]:
    """Return the installed files by the manifest in the workspace; empty when it is missing or invalid."""
    try:
        manifest_files = json.loads(await sandbox.read(manifest, limit=MAX_MANIFEST_BYTES))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return {}
    if not isinstance(manifest_files, dict):
        return {}
    return {path: digest for path, digest in manifest_files.items() if isinstance(digest, str)}


async def _delete_others(sandbox: Sandbox, installed: Mapping[str, str], wanted: Collection[str]) -> None:
    """Delete the files that were installed earlier and are not wanted any more."""
    files = ShellFiles(run=sandbox.run, root=".")
    for path in sorted(set(installed) - set(wanted)):
        with suppress(FileNotFoundError, NotADirectoryError):
            await files.remove(path)


def _evict_oldest(cache: OrderedDict[Any, Any]) -> None:
    while len(cache) > _CACHE_SIZE:
        cache.popitem(last=False)
