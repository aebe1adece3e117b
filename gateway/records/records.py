"""Create, change and read records of an account: references are checked and secrets encrypted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.exc import IntegrityError

from channels import registry as channel_plugins
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries import routes
from delivery.events.event import new_id
from egress.guard import TRUSTED, EgressGuard
from egress.policy import EgressPolicy
from gateway.accounts.vault import Vault
from gateway.config.sandbox_settings import SandboxCeilings
from gateway.records import webhooks
from gateway.records.agent import AgentConfig, agent_config, agent_urls
from gateway.records.credentials import credential_urls
from gateway.records.errors import InUse, InvalidRecord, ManagedByOperator, RecordNameTaken, RecordNotFound
from gateway.records.kinds import (
    ChannelConfig,
    ValidatedConfig,
    agents_of_channel,
    records_of_agent,
    validate,
)
from gateway.records.patches import insert_secrets, value_at
from gateway.records.rules.connection_rules import shared_connections
from gateway.records.rules.endpoint_rules import (
    CallableUrl,
    callable_url,
    disallowed_endpoints,
    disallowed_urls,
)
from gateway.records.rules.sandbox_ceilings import (
    is_first_account,
    lowered,
    problems_above,
    unlowered_problems,
)
from gateway.records.rules.workspace_rules import agent_workspace_problems, workspace_problems
from gateway.records.stored_secrets import patched_config, secret_associated_data, with_secrets
from gateway.records.tools.http_requests import HttpHookConfig, HttpToolConfig
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.records.tools.openapi_tools import OpenApiToolsConfig
from gateway.store.accounts import budgets, usage
from gateway.store.accounts import records as store
from gateway.store.accounts.records import ID_PREFIXES, Record, RecordKind
from gateway.store.conversations import channel_secrets, channel_state, pairings, schedules
from gateway.store.turns import turn_queue
from sandbox.config import ConfigProblem, SandboxConfig, normalize

_URLS: Mapping[RecordKind, Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]]] = {
    "agent": agent_urls,
    "credential": credential_urls,
}
"""The URLs of an account's records to which the gateway connects."""

HOOK_SECRET = "/hooks/webhook/secret"  # noqa: S105 - a pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRecord:
    """A record after a change, and a generated webhook secret that is returned only once."""

    record: Record
    hook_secret: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigPreview:
    """A config as it would be stored; the secret of an agent's webhook is stored elsewhere."""

    config: Mapping[str, Any] = field(repr=False)
    has_hook_secret: bool


class Records:
    """Records of accounts. Every method takes the connection first, so that callers compose transactions.

    `ceilings` is what the operator allows sandboxes of accounts to be.
    """

    def __init__(
        self,
        vault: Vault,
        egress_policy: EgressPolicy | None = None,
        *,
        ceilings: SandboxCeilings | None = None,
    ) -> None:
        self.vault = vault
        self._egress_policy = egress_policy or EgressPolicy()
        self._ceilings = ceilings or SandboxCeilings()

    async def create(
        self,
        connection: Connection,
        account: str,
        kind: RecordKind,
        *,
        name: str,
        config: Mapping[str, Any],
        below: str = "/config",
        managed: bool = False,
    ) -> SavedRecord:
        """Create a record; raises InvalidRecord, RecordNameTaken."""
        checked = validate(kind, config, below=below)
        if not managed:
            await self._check_operator_limits(connection, account, kind, config, below)
        checked = await self._resolve_and_check(connection, account, kind, checked, below)
        await self._check_connection(connection, kind, config, below)
        now = utc_now()
        record_id = new_id(ID_PREFIXES[kind])
        record = Record(
            id=record_id,
            account=account,
            kind=kind,
            name=name,
            config=checked.config,
            encrypted_secrets=self._encrypt_secrets(record_id, checked.secrets),
            managed=managed,
            created_at=now,
            updated_at=now,
        )
        try:
            await store.add(connection, record)
        except IntegrityError as error:
            raise RecordNameTaken(f"there is already one named {name!r}") from error
        return await self._saved(connection, record, checked, below)

    async def _check_operator_limits(
        self, connection: Connection, account: str, kind: RecordKind, config: Mapping[str, Any], below: str
    ) -> None:
        """Raise InvalidRecord for values that the operator does not allow to accounts."""
        found: list[ConfigProblem] = []
        if kind == "sandbox":
            is_first = await is_first_account(connection, account)
            sandbox = SandboxConfig.model_validate(dict(config))
            found = list(problems_above(sandbox, self._ceilings, is_first=is_first, below=below))
        elif kind == "channel":
            plugin = channel_plugins.plugin(config["kind"])
            settings = plugin.settings.model_validate(config.get("settings", {}))
            found = list(disallowed_endpoints(settings, self._egress_policy, f"{below}/settings"))
        elif kind in _URLS:
            found = list(disallowed_urls(_URLS[kind](config), self._egress_policy, below))
        if found:
            raise InvalidRecord(found)

    async def _check_connection(
        self, connection: Connection, kind: RecordKind, config: Mapping[str, Any], below: str, own: str = ""
    ) -> None:
        """Raise InvalidRecord for a channel whose connection another record uses."""
        if kind == "channel":
            others = [one for one in await store.list_all(connection, "channel") if one.id != own]
            parsed = ChannelConfig.model_validate(dict(config))
            found = list(shared_connections(parsed, others, self.channel_config, below=below))
            if found:
                raise InvalidRecord(found)

    async def get(
        self, connection: Connection, account: str, kind: RecordKind, id_or_name: str, *, locked: bool = False
    ) -> Record:
        """Return the account's record, `locked` to change it; raises RecordNotFound."""
        record = await store.get(connection, account, kind, id_or_name, locked=locked)
        if record is None:
            raise RecordNotFound(f"there is no such {kind} in this account")
        return record

    async def update(
        self,
        connection: Connection,
        record: Record,
        *,
        name: str | None = None,
        patch: Mapping[str, Any] | None = None,
        below: str = "/config",
    ) -> SavedRecord:
        """Rename a record or merge a patch into its config.

        Raises InvalidRecord, RecordNameTaken, and SecretUnreadable for a secret that the patch keeps.
        """
        patch = normalize(patch or {}) if record.kind == "sandbox" else patch or {}
        config = patched_config(self.vault, record, patch, below=below)
        given = "webhook" in (patch.get("hooks") or {})
        return await self.replace(connection, record, name=name, config=config, below=below, hook_given=given)

    async def preview(
        self, connection: Connection, record: Record, config: Mapping[str, Any], below: str
    ) -> ConfigPreview:
        """Return what a record's config would be, with secrets in clear; raises InvalidRecord."""
        checked = validate(record.kind, config, below=below)
        checked = await self._resolve_and_check(connection, record.account, record.kind, checked, below)
        stored = {pointer: text for pointer, text in checked.secrets.items() if pointer != HOOK_SECRET}
        return ConfigPreview(
            config=insert_secrets(checked.config, stored), has_hook_secret=HOOK_SECRET in checked.secrets
        )

    async def replace(
        self,
        connection: Connection,
        record: Record,
        *,
        config: Mapping[str, Any],
        name: str | None = None,
        below: str = "/config",
        managed: bool | None = None,
        hook_given: bool = False,
    ) -> SavedRecord:
        """Replace a record's config; raises InvalidRecord, RecordNameTaken.

        `hook_given`: the request names the agent's webhook, and so enables it.
        """
        checked = validate(record.kind, config, below=below)
        if not (managed or record.managed):
            await self._check_operator_limits(connection, record.account, record.kind, config, below)
        checked = await self._resolve_and_check(connection, record.account, record.kind, checked, below)
        await self._check_connection(connection, record.kind, config, below, record.id)
        if record.kind == "sandbox":
            found = [one async for one in agent_workspace_problems(connection, record, checked.config, below)]
            if found:
                raise InvalidRecord(found)
        changed = replace(
            record,
            name=record.name if name is None else name,
            config=checked.config,
            encrypted_secrets=self._encrypt_secrets(record.id, checked.secrets),
            managed=record.managed if managed is None else managed,
        )
        try:
            changed = await store.update_record(connection, changed)
        except IntegrityError as error:
            raise RecordNameTaken(f"there is already one named {name!r}") from error
        if record.kind == "agent" and record.config.get("limits") != changed.config.get("limits"):
            await budgets.delete_counters(connection, record.account, record.id)
        return await self._saved(connection, changed, checked, below, hook_given=hook_given)

    def callable_url(self, url: str, pointer: str) -> CallableUrl:
        """Return the URL of an account's webhook; raises InvalidRecord for one that is never called."""
        return callable_url(url, self._egress_policy, pointer)

    def guard_of(self, record: Record) -> EgressGuard:
        """Return what checks a record's connections: only the operator's records may name any address."""
        return TRUSTED if record.managed else EgressGuard(policy=self._egress_policy)

    async def release(self, connection: Connection, record: Record) -> Record:
        """Let a record that came from the settings file be changed over HTTP; returns it."""
        return await store.update_record(connection, replace(record, managed=False))

    async def delete(self, connection: Connection, record: Record) -> None:
        """Delete a record that nothing refers to; raises InUse, Managed."""
        self.ensure_not_managed(record)
        if users := await self.list_referrers(connection, record):
            raise InUse(f"{record.kind} {record.name!r} is used by {', '.join(users)}: change them first")
        if record.kind == "agent":
            await webhooks.delete_agent_webhook(connection, record.account, record.id)
            await schedules.end_for_agent(connection, record.account, record.id)
            await turn_queue.requeue_waiting_of(connection, record.account, record.id)
            await usage.keep_name(connection, record.account, record.id, record.name)
        if record.kind == "channel":
            await routes.delete_channel(connection, record.account, record.id)
            await schedules.end_for_channel(connection, record.account, record.id)
            for stored in (pairings, channel_state, channel_secrets):
                await stored.delete_for_channel(connection, record.id)
        await store.delete_record(connection, record.account, record.id)

    def ensure_not_managed(self, record: Record) -> None:
        """Raise ManagedByOperator for a record of the operator's configuration file."""
        if record.managed:
            raise ManagedByOperator

    def with_secrets(self, record: Record) -> dict[str, Any]:
        """Return the config with its secrets in clear: for the gateway's own use only."""
        return with_secrets(self.vault, record)

    def sandbox_config(self, record: Record | None) -> SandboxConfig:
        """Return a sandbox record's config (None: the defaults) with decrypted variables.

        Memory and lifetime above the operator's present ceilings are lowered to them.
        """
        config = SandboxConfig.model_validate(self.with_secrets(record)) if record else SandboxConfig()
        return lowered(config, self._ceilings)

    async def ceiling_problem(
        self, connection: Connection, account: str, config: SandboxConfig
    ) -> str | None:
        """Return why a stored sandbox config may not be used now, or None."""
        found = next(unlowered_problems(config, self._ceilings, is_first=False), None)
        if found is not None and await is_first_account(connection, account):  # it is allowed more
            found = next(unlowered_problems(config, self._ceilings, is_first=True), None)
        return None if found is None else f"{found.pointer}: {found.detail}"

    def mcp_servers(self, record: Record) -> Mapping[str, McpServerConfig]:
        """Return the MCP servers of an agent record, with decrypted secrets."""
        return AgentConfig.model_validate(self.with_secrets(record)).mcp if record.config.get("mcp") else {}

    def http_tools(self, record: Record) -> Mapping[str, HttpToolConfig]:
        """Return the HTTP tools of an agent record, with decrypted secrets."""
        if not isinstance(record.config.get("tools"), dict):
            return {}
        return AgentConfig.model_validate(self.with_secrets(record)).http_tools

    def openapi_tools(self, record: Record) -> Mapping[str, OpenApiToolsConfig]:
        """Return the OpenAPI documents of an agent record, with decrypted secrets."""
        tools = record.config.get("tools")
        if not isinstance(tools, dict) or not tools.get("openapi"):
            return {}
        return AgentConfig.model_validate(self.with_secrets(record)).openapi_tools

    def http_hooks(self, record: Record) -> Mapping[str, HttpHookConfig]:
        """Return the HTTP hooks of an agent record, with decrypted secrets."""
        if not record.config.get("hooks", {}).get("http"):
            return {}
        return AgentConfig.model_validate(self.with_secrets(record)).hooks.http

    def channel_config(self, record: Record) -> ChannelConfig:
        """Return a channel record's config, with decrypted secrets."""
        return ChannelConfig.model_validate(self.with_secrets(record))

    def _encrypt_secrets(self, record: str, secrets: Mapping[str, str]) -> dict[str, str]:
        return {
            pointer: self.vault.encrypt(secret_associated_data(record, pointer), text)
            for pointer, text in secrets.items()
            if pointer != HOOK_SECRET
        }

    async def _resolve_references(
        self, connection: Connection, account: str, checked: ValidatedConfig, below: str
    ) -> ValidatedConfig:
        """Replace names by ids; raises InvalidRecord for references to records the account does not have."""
        ids: dict[str, str] = {}
        wrong: list[ConfigProblem] = []
        for pointer, kind in (*checked.references, *checked.optional):
            wanted = value_at(checked.config, pointer)
            found = await store.get(connection, account, kind, wanted)
            if found is not None:
                ids[pointer] = found.id
            elif (pointer, kind) in checked.references:
                detail = f"there is no {kind} {wanted[:80]!r} in this account"
                wrong.append(ConfigProblem(pointer=below + pointer, detail=detail))
        if wrong:
            raise InvalidRecord(wrong)
        return replace(checked, config=insert_secrets(checked.config, ids))

    async def _resolve_and_check(
        self, connection: Connection, account: str, kind: RecordKind, checked: ValidatedConfig, below: str
    ) -> ValidatedConfig:
        """Resolve the references of a config and see that they fit together; raises InvalidRecord."""
        resolved = await self._resolve_references(connection, account, checked, below)
        if kind == "agent":
            config = AgentConfig.model_validate(resolved.config)
            found = [problem async for problem in workspace_problems(connection, account, config, below)]
            if found:
                raise InvalidRecord(found)
        return resolved

    async def _saved(
        self,
        connection: Connection,
        record: Record,
        checked: ValidatedConfig,
        below: str,
        *,
        hook_given: bool = False,
    ) -> SavedRecord:
        if record.kind != "agent":
            return SavedRecord(record=record)
        given = {HOOK_SECRET: checked.secrets[HOOK_SECRET]} if HOOK_SECRET in checked.secrets else {}
        hook = AgentConfig.model_validate(insert_secrets(record.config, given)).hooks.webhook
        hook_secret = await webhooks.sync_agent_webhook(
            connection,
            self.vault,
            record.account,
            record.id,
            hook,
            check=lambda url: self.callable_url(url, f"{below}/hooks/webhook/url"),
            is_given=hook_given,
        )
        return SavedRecord(record=record, hook_secret=hook_secret)

    async def list_referrers(self, connection: Connection, record: Record) -> list[str]:
        """Return the kinds and names of the records that refer to a record."""
        account = record.account
        if record.kind == "agent":
            channels = await store.list_by_kind(connection, account, "channel")
            credentials = await store.list_by_kind(connection, account, "credential")
            users = [
                f"channel {one.name!r}" for one in channels if record.id in agents_of_channel(one.config)
            ]
            uses = [one for one in credentials if record.id in one.config["agents"]]
            return users + [f"credential {one.name!r}" for one in uses]
        if record.kind in ("channel", "credential"):
            return []
        agents = await store.list_by_kind(connection, account, "agent")
        return [f"agent {one.name!r}" for one in agents if record.id in records_of_agent(agent_config(one))]
