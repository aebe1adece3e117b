"""The `config` of an agent record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SecretStr, StrictBool, field_validator

from egress.typed_model import TypedModel
from gateway.agents.port import AgentSpec, TurnLimits
from gateway.config.setting_types import (
    DEFAULT_MODEL,
    SHELL,
    AgentModelName,
    AgentSettings,
    LanguageModelName,
    LimitSettings,
    WebUrl,
)
from gateway.records.agent_sends import AgentSends
from gateway.records.fields import EventPattern, HookUrl, Reference, Whsec
from gateway.records.parsed_configs import ParsedConfigs
from gateway.records.tools.http_requests import AgentTools, HttpHooks, HttpToolConfig, ToolNames
from gateway.records.tools.mcp_servers import McpServers
from gateway.records.tools.openapi_tools import OpenApiToolsConfig
from gateway.store.accounts.records import Record


class _AgentConfigModel(TypedModel):
    """Base of the parts of an agent's config: immutable, unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class WorkspaceUse(_AgentConfigModel):
    """A workspace of the agent; its `sandbox` overrides the agent's, null means none."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    workspace: Reference = Field(alias="workspaceId")
    sandbox: Reference | None = None
    read_only: StrictBool = Field(default=False, alias="readOnly")


class AgentHook(_AgentConfigModel):
    """Where the agent's own events go besides the account's webhooks."""

    url: HookUrl
    secret: Annotated[SecretStr, Whsec] | None = None
    events: tuple[EventPattern, ...] = Field(default=("agent.finished",), min_length=1, max_length=50)


class AgentHooks(_AgentConfigModel):
    """The agent's webhook, and the requests that decide about its calls and turns."""

    webhook: AgentHook | None = None
    http: HttpHooks = Field(default_factory=dict)


class QueueConfig(_AgentConfigModel):
    """What happens to a message that arrives while a turn runs, and how many turns may be queued.

    `limit` null: the gateway's `queue_limit`.
    """

    mode: Literal["followup", "collect", "steer", "interrupt"] = "followup"
    limit: Annotated[int, Field(ge=1, le=1000, strict=True)] | None = None


class AgentConfig(_AgentConfigModel):
    """An agent record's `config`, defaults filled in. `model` "default" is the operator's model.

    `tools` are the names of the offered tools; or an object of these `names`, of `http` tools, of
    `openapi` documents, and of `scripts`.
    `modelChoices` are what people may select with `/model`; null: those of the operator.
    `sends` are the places that the agent may send messages to by itself.
    `reactions`: people's reactions to messages of its conversations start turns.
    `roomPrompt` says where the agent is and explains messages of rooms; null is the gateway's text, "" none.
    """

    model: AgentModelName = DEFAULT_MODEL
    fallback: tuple[LanguageModelName, ...] = Field(default=(), max_length=10)
    model_choices: tuple[LanguageModelName, ...] | None = Field(
        default=None, max_length=50, alias="modelChoices"
    )
    instructions: str = Field(default="", max_length=100_000)
    base_url: WebUrl | None = None
    sandbox: Reference | None = None
    workspaces: tuple[WorkspaceUse, ...] = Field(default=(), max_length=20)
    tools: ToolNames | AgentTools | None = None
    mcp: McpServers = Field(default_factory=dict)
    hooks: AgentHooks = AgentHooks()
    limits: LimitSettings = LimitSettings()
    queue: QueueConfig = QueueConfig()
    sends: AgentSends = AgentSends()
    reactions: StrictBool = False
    room_prompt: Annotated[str, Field(max_length=20_000)] | None = Field(default=None, alias="roomPrompt")

    @property
    def tool_names(self) -> tuple[str, ...] | None:
        """The names of the built-in and installed tools that are offered; None: all."""
        return self.tools.names if isinstance(self.tools, AgentTools) else self.tools

    @property
    def http_tools(self) -> Mapping[str, HttpToolConfig]:
        """The tools that are HTTP requests."""
        return self.tools.http if isinstance(self.tools, AgentTools) else {}

    @property
    def openapi_tools(self) -> Mapping[str, OpenApiToolsConfig]:
        """The documents whose operations are tools."""
        return self.tools.openapi if isinstance(self.tools, AgentTools) else {}

    @property
    def scripts(self) -> str | None:
        """The path of the workspace's file that describes its scripts; None: they are no tools."""
        return self.tools.scripts if isinstance(self.tools, AgentTools) else None

    @field_validator("queue", mode="before")
    @classmethod
    def _mode_alone(cls, given: Any) -> Any:
        return {"mode": given} if isinstance(given, str) else given


_AGENTS = ParsedConfigs(AgentConfig)


def agent_config(record: Record) -> AgentConfig:
    """Return a stored agent's config."""
    return _AGENTS.get(record)


def agent_urls(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pointers and URLs of a config to which the agent's tools connect."""
    parsed = AgentConfig.model_validate(dict(config))
    for name, server in parsed.mcp.items():
        if server.url is not None:
            yield f"/mcp/{name}/url", server.url
    for name, tool in parsed.http_tools.items():
        yield f"/tools/http/{name}/url", tool.url
    for name, document in parsed.openapi_tools.items():
        yield f"/tools/openapi/{name}/url", document.server
    for name, hook in parsed.hooks.http.items():
        yield f"/hooks/http/{name}/url", hook.url


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorModel:
    """The models of the operator's settings in the order they are tried, and their server's base URL.

    `choices` are the models that people may select, unless the agent's record names others.
    """

    models: tuple[str, ...] = (SHELL,)
    base_url: str | None = None
    choices: tuple[str, ...] = ()

    @classmethod
    def from_settings(cls, settings: AgentSettings) -> OperatorModel:
        """Return the model of the settings' default agent."""
        return cls(
            models=(settings.model, *settings.fallback),
            base_url=settings.base_url,
            choices=settings.model_choices,
        )


def model_choices(record: Record, operator_model: OperatorModel) -> tuple[str, ...]:
    """Return the models that people may select for an agent's turns, its own model first."""
    choices = agent_config(record).model_choices
    own = agent_spec(record, operator_model).models[0]
    return tuple(dict.fromkeys((own, *(operator_model.choices if choices is None else choices))))


def models_of(config: AgentConfig, operator_model: OperatorModel) -> tuple[tuple[str, ...], str | None]:
    """Return an agent's models in the order they are tried, and their server's base URL."""
    if config.model != DEFAULT_MODEL:
        return (config.model, *config.fallback), config.base_url
    first, *fallback = operator_model.models
    return (first, *(config.fallback or fallback)), config.base_url or operator_model.base_url


def agent_spec(record: Record, operator_model: OperatorModel, choice: str | None = None) -> AgentSpec:
    """Return a stored agent as a turn needs it; without a model of its own it has the operator's.

    A `choice` is tried first, as long as it may be selected; then those to which the agent falls back.
    """
    config = agent_config(record)
    models, base_url = models_of(config, operator_model)
    if choice is not None and choice in model_choices(record, operator_model):
        models = tuple(dict.fromkeys((choice, *models[1:])))
    return AgentSpec(
        id=record.id,
        name=record.name,
        models=models,
        instructions=config.instructions,
        base_url=base_url,
        limits=turn_limits(config),
    )


def turn_limits(config: AgentConfig) -> TurnLimits:
    """Return the limits of an agent's turns."""
    return TurnLimits(**config.limits.model_dump())
