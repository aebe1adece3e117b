"""The config of each kind of record, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from channels import registry as channel_plugins
from egress.typed_model import TypedModel
from gateway.agents.custom.installed_agents import entry_problem
from gateway.config.setting_types import ENTRY_PREFIX
from gateway.records.agent import AgentConfig
from gateway.records.credentials import EVERY_AGENT, SECRETS, CredentialConfig, secret_fields
from gateway.records.errors import InvalidRecord, json_pointer
from gateway.records.fields import NEVER_SENT, Reference, is_sent
from gateway.records.input_problems import to_problems
from gateway.records.patches import extract_secrets
from gateway.store.accounts.records import RecordKind
from sandbox import registry as sandbox_plugins
from sandbox.config import ConfigProblem, SandboxConfig, problems

AGENT: RecordKind = "agent"
MAX_VALUES = 10_000
MAX_CHARACTERS = 4_000_000
"""The size of a config; each turn of an agent reads several."""

WorkspaceStores = Literal["directory"]
Model = TypeVar("Model", bound=BaseModel)


class WorkspaceConfig(TypedModel):
    """A workspace record's `config`, defaults filled in."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    store: WorkspaceStores = "directory"
    read_only: StrictBool = Field(default=False, alias="readOnly")


class SkillConfig(TypedModel):
    """The `config` of a skill record: its description for the model. Its files are uploaded separately."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = Field(default="", max_length=1000)


class ChannelConfig(TypedModel):
    """A channel record's `config`: which adapter, which agent answers, and the adapter's own settings.

    A paused channel receives nothing; what the gateway sends is still sent.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(min_length=1, max_length=60)
    agent: Reference
    settings: dict[str, Any] = Field(default_factory=dict)
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedConfig:
    """A valid config: as JSON with MASK for secrets, the secrets by pointer, references by pointer.

    What an `optional` reference names need not exist, or not yet.
    """

    config: dict[str, Any]
    secrets: dict[str, str]
    references: tuple[tuple[str, RecordKind], ...] = ()
    optional: tuple[tuple[str, RecordKind], ...] = ()


def validate(kind: RecordKind, config: Mapping[str, Any], *, below: str = "/config") -> ValidatedConfig:
    """Return the config as it is stored; raises InvalidRecord with every problem, pointers below `below`."""
    _require_bounded_size(config, below)
    return _VALIDATORS[kind](config, below)


def _require_bounded_size(config: Mapping[str, Any], below: str) -> None:
    """Refuse a config that patches have made larger than one request can."""
    values = characters = 0
    left: list[object] = [config]
    while left:
        value = left.pop()
        values += 1
        if isinstance(value, Mapping):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, str):
            characters += len(value)
    for size, limit, unit in (
        (values, MAX_VALUES, "keys and values"),
        (characters, MAX_CHARACTERS, "characters"),
    ):
        if size > limit:
            detail = f"has {size} {unit}, and at most {limit} are stored: remove some"
            raise InvalidRecord((ConfigProblem(pointer=below, detail=detail),))


def _parse(model: type[Model], config: Mapping[str, Any], below: str) -> Model:
    try:
        return model.model_validate(dict(config))
    except ValidationError as error:
        raise InvalidRecord(to_problems(error, config, model, below=below)) from error


def _dump(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, exclude_unset=True)


def _validate_sandbox(config: Mapping[str, Any], below: str) -> ValidatedConfig:
    parsed = _parse(SandboxConfig, config, below)
    try:
        plugin = sandbox_plugins.plugin(parsed.provider)
    except sandbox_plugins.UnknownProvider as error:
        raise InvalidRecord([ConfigProblem(pointer=f"{below}/provider", detail=str(error))]) from error
    found = problems(parsed, plugin)
    if found:
        raise InvalidRecord(ConfigProblem(pointer=below + one.pointer, detail=one.detail) for one in found)
    stored, secrets = extract_secrets(_dump(parsed), texts_below="/envVars")
    return ValidatedConfig(config=stored, secrets=secrets)


def _validate_agent(config: Mapping[str, Any], below: str) -> ValidatedConfig:
    parsed = _parse(AgentConfig, config, below)
    if parsed.model.startswith(ENTRY_PREFIX) and (problem := entry_problem(parsed.model, "model")):
        raise InvalidRecord([ConfigProblem(pointer=f"{below}/model", detail=problem)])
    if found := list(_event_problems(parsed, f"{below}/hooks/webhook/events")):
        raise InvalidRecord(found)
    stored, secrets = extract_secrets(_dump(parsed))
    return ValidatedConfig(
        config=stored,
        secrets=secrets,
        references=tuple(_agent_references(parsed)),
        optional=tuple(
            (f"/sends/to/{name}/channel", "channel")
            for name, place in parsed.sends.to.items()
            if place.channel is not None
        ),
    )


def _event_problems(config: AgentConfig, below: str) -> Iterator[ConfigProblem]:
    """Yield a problem for each pattern of the agent's webhook that selects no event."""
    patterns = config.hooks.webhook.events if config.hooks.webhook else ()
    for place, pattern in enumerate(patterns):
        if not is_sent(pattern):
            yield ConfigProblem(pointer=f"{below}/{place}", detail=NEVER_SENT)


def _agent_references(config: AgentConfig) -> Iterator[tuple[str, RecordKind]]:
    if config.sandbox is not None:
        yield "/sandbox", "sandbox"
    for place, use in enumerate(config.workspaces):
        yield f"/workspaces/{place}/workspaceId", "workspace"
        if use.sandbox is not None:
            yield f"/workspaces/{place}/sandbox", "sandbox"


def records_of_agent(config: AgentConfig) -> set[str | None]:
    """Return the ids of the sandboxes and workspaces of an agent."""
    inner = {reference for use in config.workspaces for reference in (use.workspace, use.sandbox)}
    return {config.sandbox, *inner}


def _validate_workspace(config: Mapping[str, Any], below: str) -> ValidatedConfig:
    return ValidatedConfig(config=_dump(_parse(WorkspaceConfig, config, below)), secrets={})


def _validate_skill(config: Mapping[str, Any], below: str) -> ValidatedConfig:
    return ValidatedConfig(config=_dump(_parse(SkillConfig, config, below)), secrets={})


def _validate_credential(config: Mapping[str, Any], below: str) -> ValidatedConfig:
    parsed = _parse(CredentialConfig, config, below)
    try:
        fields = secret_fields(parsed)
    except ValueError as error:
        raise InvalidRecord([ConfigProblem(pointer=f"{below}/secret", detail=str(error))]) from None
    secret = _parse(SECRETS[parsed.kind], fields, f"{below}/secret")
    whole = {
        **parsed.model_dump(),
        "agents": list(parsed.agents),
        "secret": secret.model_dump(exclude_none=True),
    }
    stored, secrets = extract_secrets(whole)
    agents = tuple(
        (f"/agents/{place}", AGENT) for place, one in enumerate(parsed.agents) if one != EVERY_AGENT
    )
    return ValidatedConfig(config=stored, secrets=secrets, references=agents)


def agents_of_channel(config: Mapping[str, Any]) -> set[str]:
    """Return the ids of the agents in a stored channel's config: its own, and those of single rooms."""
    rooms = config.get("settings", {}).get("rooms") or {}
    return {config["agent"]} | {room["agent"] for room in rooms.values() if room.get("agent") is not None}


def _validate_channel(config: Mapping[str, Any], below: str) -> ValidatedConfig:
    parsed = _parse(ChannelConfig, config, below)
    try:
        plugin = channel_plugins.plugin(parsed.kind)
    except channel_plugins.UnknownChannelKind as error:
        raise InvalidRecord([ConfigProblem(pointer=f"{below}/kind", detail=str(error))]) from error
    settings = _parse(plugin.settings, parsed.settings, f"{below}/settings")
    _refuse_blank(settings, f"{below}/settings")
    stored, secrets = extract_secrets(
        {
            "kind": parsed.kind,
            "agent": parsed.agent,
            "settings": settings.model_dump(exclude_unset=True),
            **({"paused": True} if parsed.paused else {}),
        }
    )
    rooms = tuple(
        (f"/settings/rooms{json_pointer((room,))}/agent", AGENT)
        for room, said in settings.rooms.items()
        if said.agent is not None
    )
    return ValidatedConfig(config=stored, secrets=secrets, references=(("/agent", "agent"), *rooms))


def _refuse_blank(settings: BaseModel, below: str) -> None:
    """An empty secret is refused, because it would accept every request."""
    _stored, secrets = extract_secrets(settings.model_dump(exclude_unset=True))
    blank = [where for where, text in secrets.items() if not text.strip()]
    if blank:
        raise InvalidRecord(
            ConfigProblem(pointer=below + where, detail="must not be blank") for where in blank
        )


_VALIDATORS: Mapping[RecordKind, Callable[[Mapping[str, Any], str], ValidatedConfig]] = {
    "sandbox": _validate_sandbox,
    "agent": _validate_agent,
    "workspace": _validate_workspace,
    "channel": _validate_channel,
    "skill": _validate_skill,
    "credential": _validate_credential,
}
