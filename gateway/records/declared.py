"""Records that the settings file declares: `[sandboxes.NAME]`, `[agents.NAME]` and further tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import structlog

from delivery.database import transaction_locks
from delivery.database.engine import Connection
from delivery.database.transaction_locks import TransactionLock
from gateway.accounts.vault import DecryptionFailed
from gateway.config.settings import Settings
from gateway.config.validation import adapter_settings
from gateway.records.errors import InvalidRecord
from gateway.records.kinds import validate
from gateway.records.records import Records
from gateway.records.skill_folders import SkillFolder, read_skill_folders, warn_of_undescribed, write_files
from gateway.store.accounts import mcp_sign_ins, revisions
from gateway.store.accounts import records as store
from gateway.store.accounts.records import Record, RecordKind
from gateway.store.turns.jobs import count_running_of
from sandbox.config import ConfigProblem

log = structlog.get_logger(__name__)

Tables = Mapping[str, Mapping[str, Any]]

RESERVED = "default"
"""The name of the records that the gateway makes itself."""

_REMEDIES: Mapping[RecordKind, str] = {
    "sandbox": "its provider is `sandbox.provider`; take another name for another sandbox",
    "workspace": "take another name for another workspace",
    "agent": "its settings are in [agent]; take another name for another agent",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRecords:
    """The tables of the settings file, by name.

    Those of sandboxes, workspaces, agents and credentials take what the record takes over HTTP. That of a
    channel has `kind` and `agent` beside the adapter's settings. Skills are folders.
    """

    sandboxes: Tables = field(default_factory=dict)
    workspaces: Tables = field(default_factory=dict)
    agents: Tables = field(default_factory=dict)
    credentials: Tables = field(default_factory=dict, repr=False)
    channels: Tables = field(default_factory=dict)
    skills: Mapping[str, SkillFolder] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: Settings) -> DeclaredRecords:
        """Return the tables of the settings; raises InvalidRecord if the skills cannot be read."""
        return cls(
            sandboxes=settings.sandboxes,
            workspaces=settings.workspaces.tables,
            agents=settings.agents,
            credentials=settings.credentials,
            channels=settings.channels,
            skills=read_skill_folders(settings.skills.directory),
        )

    def by_kind(self) -> Iterator[tuple[RecordKind, str, Tables]]:
        """Yield the kind, its table and the records' configs; what others refer to comes first."""
        yield "sandbox", "sandboxes", self.sandboxes
        yield "workspace", "workspaces", self.workspaces
        yield "agent", "agents", self.agents
        yield "credential", "credentials", self.credentials
        yield "skill", "skills", {name: {"description": one.description} for name, one in self.skills.items()}
        yield "channel", "channels", {name: _channel_config(name, one) for name, one in self.channels.items()}


def _channel_config(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    own = {"kind": table.get("kind", name), "agent": table.get("agent", RESERVED)}
    paused = {"paused": table["paused"]} if "paused" in table else {}
    return {**own, **paused, "settings": adapter_settings(table)}


class ChangeKind(StrEnum):
    """What happens to a record."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChange:
    """A change of one record; `fields` are the keys of its config that differ.

    A released record is not in the file any more and stays as one that HTTP can change; `reason` says why.
    `ended_jobs` is how many jobs run in the sandboxes of a record that is deleted, and end with it.
    """

    change: ChangeKind
    kind: RecordKind | Literal["schedule"]
    name: str
    fields: tuple[str, ...] = ()
    reason: str = ""
    ended_jobs: int = 0


async def apply_declared(
    connection: Connection, records: Records, account: str, declared: DeclaredRecords
) -> list[RecordChange]:
    """Make the account's records those of the file, and return the changes; raises InvalidRecord.

    Records that are not in the file are changed only if they came from it: channels, and agents and
    sandboxes that nothing uses, are deleted. A workspace is never deleted with its files because a table
    is missing.
    """
    if problems := list(declared_problems(declared)):
        raise InvalidRecord(problems)
    await transaction_locks.acquire(connection, TransactionLock.DECLARED_RECORDS)
    await revisions.lock(connection, account)
    tables = list(declared.by_kind())
    kind, _table, channels = tables[-1]
    changes = await _remove_others(connection, records, account, kind, channels)
    for kind, table, wanted in tables:
        present = {one.name: one for one in await store.list_by_kind(connection, account, kind)}
        for name, config in wanted.items():
            below = f"/{table}/{name}"
            if name in present:
                changes += await _update(connection, records, present[name], config, below)
            else:
                await records.create(
                    connection, account, kind, name=name, config=config, below=below, managed=True
                )
                changes.append(RecordChange(change=ChangeKind.CREATE, kind=kind, name=name))
    changes += await _apply_places(connection, records, account, declared, changes)
    changes += await _apply_files(connection, account, declared, changes)
    warn_of_undescribed(declared.skills)
    for kind, _table, wanted in reversed(tables[:-1]):
        changes += await _remove_others(connection, records, account, kind, wanted)
    return changes


async def _apply_places(
    connection: Connection,
    records: Records,
    account: str,
    declared: DeclaredRecords,
    changes: Sequence[RecordChange],
) -> list[RecordChange]:
    """Let agents refer to channels that were made after them; a changed agent is listed already."""
    listed = {one.name for one in changes if one.kind == "agent"}
    made: list[RecordChange] = []
    for name, config in declared.agents.items():
        record = await store.get(connection, account, "agent", name)
        if record is None or "sends" not in config:
            continue
        found = await _update(connection, records, record, config, f"/agents/{name}")
        made += [one for one in found if name not in listed]
    return made


async def _apply_files(
    connection: Connection, account: str, declared: DeclaredRecords, changes: Sequence[RecordChange]
) -> list[RecordChange]:
    """Make the files of skills those of their folders; a skill that is new or changed is listed already."""
    listed = {one.name for one in changes if one.kind == "skill"}
    made = []
    for name, folder in declared.skills.items():
        record = await store.get(connection, account, "skill", name)
        assert record is not None, "it was created or updated before"
        if await write_files(connection, record.id, folder.files) and name not in listed:
            made.append(RecordChange(change=ChangeKind.UPDATE, kind="skill", name=name, fields=("files",)))
    return made


def declared_problems(declared: DeclaredRecords) -> Iterator[ConfigProblem]:
    """Yield what is wrong with each table by itself; the database knows what else it may refer to."""
    for kind, table, wanted in declared.by_kind():
        if RESERVED in wanted and kind in _REMEDIES:
            detail = f"{RESERVED!r} is the {kind} that the gateway makes: {_REMEDIES[kind]}"
            yield ConfigProblem(pointer=f"/{table}/{RESERVED}", detail=detail)
        for name, config in wanted.items():
            try:
                validate(kind, config, below=f"/{table}/{name}")
            except InvalidRecord as error:
                yield from error.problems


async def _update(
    connection: Connection, records: Records, present: Record, config: Mapping[str, Any], below: str
) -> Sequence[RecordChange]:
    after = await records.preview(connection, present, config, below)
    differing = _differing(_stored_config(records, present), after.config)
    if differing or after.has_hook_secret or not present.managed:
        await records.replace(connection, present, config=config, below=below, managed=True)
    if present.managed and not differing:
        return []
    return [RecordChange(change=ChangeKind.UPDATE, kind=present.kind, name=present.name, fields=differing)]


def _stored_config(records: Records, record: Record) -> Mapping[str, Any]:
    """Return a record's config with its secrets; empty if one cannot be decrypted: the file has them."""
    try:
        return records.with_secrets(record)
    except DecryptionFailed as error:
        log.warning("record.secrets_replaced", kind=record.kind, name=record.name, error=str(error))
        return {}


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(key for key in {*before, *after} if before.get(key) != after.get(key)))


async def _remove_others(
    connection: Connection, records: Records, account: str, kind: RecordKind, wanted: Tables
) -> list[RecordChange]:
    """Delete or release the records that came from the file and are not in it any more."""
    present = await store.list_by_kind(connection, account, kind)
    gone = [one for one in present if one.managed and one.name not in wanted]
    return [await _remove(connection, records, one) for one in gone]


async def _remove(connection: Connection, records: Records, record: Record) -> RecordChange:
    reason = await _reason_to_keep(connection, records, record)
    if record.kind == "agent" and not reason:
        await mcp_sign_ins.end_for_agent(connection, record.id)
    released = await records.release(connection, record)
    if reason:
        return RecordChange(change=ChangeKind.RELEASE, kind=record.kind, name=record.name, reason=reason)
    ended = await count_running_of(connection, record.id) if record.kind == "sandbox" else 0
    await records.delete(connection, released)
    return RecordChange(change=ChangeKind.DELETE, kind=record.kind, name=record.name, ended_jobs=ended)


async def _reason_to_keep(connection: Connection, records: Records, record: Record) -> str:
    if record.kind == "workspace":
        return "its files are kept"
    users = await records.list_referrers(connection, record)
    return f"still used by {', '.join(users)}" if users else ""
