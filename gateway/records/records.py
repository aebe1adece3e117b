"""The book of records: made, changed and read within one account, references checked, secrets sealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.exc import IntegrityError

from channels import registry as channel_plugins
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.events.event import new_id
from delivery.webhooks.egress import Rules
from gateway.accounts.vault import Context, Vault, context
from gateway.records import webhooks
from gateway.records.agent import AgentConfig, agent_config
from gateway.records.endpoint_rules import foreign_endpoints
from gateway.records.errors import InUse, Invalid, Managed, Missing, Taken
from gateway.records.kinds import ChannelConfig, Checked, check
from gateway.records.patches import merge, restore
from gateway.records.workspace_rules import unfit, unfit_for_agents
from gateway.store.accounts import records as store
from gateway.store.accounts.records import PREFIXES, Kind, Record
from gateway.store.conversations import channel_state, pairings
from sandbox.config import Problem, SandboxConfig, spelled

HOOK_SECRET = "/hooks/webhook/secret"  # noqa: S105 - a pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A record as it stands now, and a generated webhook secret that is told once."""

    record: Record
    hook_secret: str | None = None


def secret_at(record: str, pointer: str) -> Context:
    """Name where a record's secret stands."""
    return context("records", record, pointer)


class Book:
    """Records of accounts. Every method takes the connection first: callers compose transactions.

    `most_memory_mb` is what the operator lets a sandbox have; None: any amount.
    """

    def __init__(
        self, vault: Vault, rules: Rules | None = None, *, most_memory_mb: int | None = None
    ) -> None:
        self.vault = vault
        self._rules = rules or Rules()
        self._most_memory_mb = most_memory_mb

    async def create(
        self,
        connection: Connection,
        account: str,
        kind: Kind,
        *,
        name: str,
        config: Mapping[str, Any],
        below: str = "/config",
        managed: bool = False,
    ) -> Written:
        """Make a record; raises Invalid, Taken."""
        checked = check(kind, config, below=below)
        self._check_reach(kind, config, below, managed=managed)
        checked = await self._fitting(connection, account, kind, checked, below)
        now = utc_now()
        record_id = new_id(PREFIXES[kind])
        record = Record(
            id=record_id,
            account=account,
            kind=kind,
            name=name,
            config=checked.config,
            sealed=self._sealed(record_id, checked.secrets),
            managed=managed,
            created_at=now,
            updated_at=now,
        )
        try:
            await store.add(connection, record)
        except IntegrityError as error:
            raise Taken(f"there is already one named {name!r}") from error
        return await self._written(connection, record, checked)

    def _check_reach(self, kind: Kind, config: Mapping[str, Any], below: str, *, managed: bool) -> None:
        """Refuse what the operator has not allowed: endpoints of an account's channel, a sandbox's memory."""
        if kind == "sandbox":
            self._check_memory(SandboxConfig.model_validate(dict(config)), below)
        if kind != "channel" or managed:
            return
        settings = channel_plugins.plugin(config["kind"]).settings.model_validate(config.get("settings", {}))
        found = list(foreign_endpoints(settings, self._rules, f"{below}/settings"))
        if found:
            raise Invalid(found)

    def _check_memory(self, config: SandboxConfig, below: str) -> None:
        most, wanted = self._most_memory_mb, config.memory_limit
        if most is not None and wanted > most and "memory_limit" in config.model_fields_set:
            detail = f"{wanted} is too much: at most {most} MB here, as the operator says"
            raise Invalid([Problem(pointer=f"{below}/memoryLimit", detail=detail)])

    async def get(self, connection: Connection, account: str, kind: Kind, id_or_name: str) -> Record:
        """Return the account's record; raises Missing."""
        record = await store.find(connection, account, kind, id_or_name)
        if record is None:
            raise Missing(f"there is no such {kind} in this account")
        return record

    async def change(
        self,
        connection: Connection,
        record: Record,
        *,
        name: str | None = None,
        patch: Mapping[str, Any] | None = None,
        below: str = "/config",
    ) -> Written:
        """Rename a record or merge a patch into its config; raises Invalid, Taken."""
        patch = patch or {}
        config = merge(self.opened(record), spelled(patch) if record.kind == "sandbox" else patch)
        return await self.rewrite(connection, record, name=name, config=config, below=below)

    async def rewrite(
        self,
        connection: Connection,
        record: Record,
        *,
        config: Mapping[str, Any],
        name: str | None = None,
        below: str = "/config",
        managed: bool | None = None,
    ) -> Written:
        """Put a whole config in the place of a record's; raises Invalid, Taken."""
        checked = check(record.kind, config, below=below)
        self._check_reach(record.kind, config, below, managed=managed or record.managed)
        checked = await self._fitting(connection, record.account, record.kind, checked, below)
        if record.kind == "sandbox":
            found = [one async for one in unfit_for_agents(connection, record, checked.config, below)]
            if found:
                raise Invalid(found)
        changed = replace(
            record,
            name=record.name if name is None else name,
            config=checked.config,
            sealed=self._sealed(record.id, checked.secrets),
            managed=record.managed if managed is None else managed,
            updated_at=utc_now(),
        )
        try:
            await store.change(connection, changed)
        except IntegrityError as error:
            raise Taken(f"there is already one named {name!r}") from error
        return await self._written(connection, changed, checked)

    async def remove(self, connection: Connection, record: Record) -> None:
        """Delete a record that nothing refers to; raises InUse, Managed."""
        self.require_own(record)
        users = await self._users(connection, record)
        if users:
            raise InUse(f"{record.kind} {record.name!r} is used by {', '.join(users)}: change them first")
        if record.kind == "agent":
            await webhooks.follow_hook(connection, self.vault, record.account, record.id, None)
        if record.kind == "channel":
            await pairings.forget_channel(connection, record.id)
            await channel_state.forget_channel(connection, record.id)
        await store.remove(connection, record.account, record.id)

    def require_own(self, record: Record) -> None:
        """Raise Managed for what stands in the operator's file and would come back at the next start."""
        if record.managed:
            raise Managed

    def opened(self, record: Record) -> dict[str, Any]:
        """Return the config with its secrets in clear: for the gateway's own use only."""
        texts = {
            pointer: self.vault.reveal(secret_at(record.id, pointer), sealed)
            for pointer, sealed in record.sealed.items()
        }
        return restore(record.config, texts)

    def sandbox_config(self, record: Record | None) -> SandboxConfig:
        """Return a sandbox record's config (None: the defaults), its variables in clear.

        One that was stored when the operator allowed more memory gets what is allowed now.
        """
        config = SandboxConfig.model_validate(self.opened(record)) if record else SandboxConfig()
        most = self._most_memory_mb
        if most is None or config.memory_limit <= most:
            return config
        return config.model_copy(update={"memory_limit": most})

    def channel_config(self, record: Record) -> ChannelConfig:
        """Return a channel record's config, its settings' secrets in clear."""
        return ChannelConfig.model_validate(self.opened(record))

    def _sealed(self, record: str, secrets: Mapping[str, str]) -> dict[str, str]:
        return {
            pointer: self.vault.seal(secret_at(record, pointer), text)
            for pointer, text in secrets.items()
            if pointer != HOOK_SECRET
        }

    async def _resolved(self, connection: Connection, account: str, checked: Checked, below: str) -> Checked:
        """Put ids where names stand; raises Invalid for what the account does not have."""
        ids: dict[str, str] = {}
        wrong: list[Problem] = []
        for pointer, kind in checked.references:
            wanted = _at(checked.config, pointer)
            found = await store.find(connection, account, kind, wanted)
            if found is None:
                detail = f"there is no {kind} {wanted[:80]!r} in this account"
                wrong.append(Problem(pointer=below + pointer, detail=detail))
            else:
                ids[pointer] = found.id
        if wrong:
            raise Invalid(wrong)
        return replace(checked, config=restore(checked.config, ids))

    async def _fitting(
        self, connection: Connection, account: str, kind: Kind, checked: Checked, below: str
    ) -> Checked:
        """Resolve the references of a config and see that they fit together; raises Invalid."""
        resolved = await self._resolved(connection, account, checked, below)
        if kind == "agent":
            config = AgentConfig.model_validate(resolved.config)
            found = [problem async for problem in unfit(connection, account, config, below)]
            if found:
                raise Invalid(found)
        return resolved

    async def _written(self, connection: Connection, record: Record, checked: Checked) -> Written:
        if record.kind != "agent":
            return Written(record=record)
        given = {HOOK_SECRET: checked.secrets[HOOK_SECRET]} if HOOK_SECRET in checked.secrets else {}
        hook = AgentConfig.model_validate(restore(record.config, given)).hooks.webhook
        told = await webhooks.follow_hook(connection, self.vault, record.account, record.id, hook)
        return Written(record=record, hook_secret=told)

    async def _users(self, connection: Connection, record: Record) -> list[str]:
        account = record.account
        if record.kind == "agent":
            channels = await store.list_of(connection, account, "channel")
            return [f"channel {one.name!r}" for one in channels if one.config["agent"] == record.id]
        if record.kind == "channel":
            return []
        agents = await store.list_of(connection, account, "agent")
        return [f"agent {one.name!r}" for one in agents if record.id in _used(agent_config(one))]


def _used(config: AgentConfig) -> set[str | None]:
    inner = {reference for use in config.workspaces for reference in (use.workspace, use.sandbox)}
    return {config.sandbox, *inner}


def _at(config: Mapping[str, Any], pointer: str) -> str:
    place: Any = config
    for escaped in pointer.split("/")[1:]:
        part = escaped.replace("~1", "/").replace("~0", "~")
        place = place[int(part)] if isinstance(place, list) else place[part]
    return str(place)
