"""The `config` of an agent record."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StrictBool, field_validator

from gateway.agents.port import AgentSpec, TurnLimits
from gateway.config.setting_types import LanguageModelName, LimitSettings, ModelName, WebUrl
from gateway.records.fields import EventPattern, HookUrl, Reference, Whsec
from gateway.store.accounts.records import Record


class _AgentConfigModel(BaseModel):
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
    """The agent's webhook."""

    webhook: AgentHook | None = None


class QueueConfig(_AgentConfigModel):
    """What happens to a message that arrives while a turn runs, and how many turns may be queued.

    `limit` null: the gateway's `queue_limit`.
    """

    mode: Literal["followup", "collect", "steer", "interrupt"] = "followup"
    limit: Annotated[int, Field(ge=1, le=1000, strict=True)] | None = None


class AgentConfig(_AgentConfigModel):
    """An agent record's `config`, defaults filled in."""

    model: ModelName = "builtin:shell"
    fallback: tuple[LanguageModelName, ...] = Field(default=(), max_length=10)
    instructions: str = Field(default="", max_length=100_000)
    base_url: WebUrl | None = None
    sandbox: Reference | None = None
    workspaces: tuple[WorkspaceUse, ...] = Field(default=(), max_length=20)
    tools: tuple[Annotated[str, Field(min_length=1, max_length=60)], ...] | None = Field(
        default=None, max_length=100
    )
    hooks: AgentHooks = AgentHooks()
    limits: LimitSettings = LimitSettings()
    queue: QueueConfig = QueueConfig()

    @field_validator("queue", mode="before")
    @classmethod
    def _mode_alone(cls, given: Any) -> Any:
        return {"mode": given} if isinstance(given, str) else given


def agent_config(record: Record) -> AgentConfig:
    """Return a stored agent's config."""
    return AgentConfig.model_validate(record.config)


def agent_spec(record: Record) -> AgentSpec:
    """Return a stored agent as a turn needs it."""
    config = agent_config(record)
    limits = TurnLimits(**config.limits.model_dump())
    return AgentSpec(
        id=record.id,
        name=record.name,
        models=(config.model, *config.fallback),
        instructions=config.instructions,
        base_url=config.base_url,
        limits=limits,
    )
