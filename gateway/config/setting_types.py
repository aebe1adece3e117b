"""Types of setting values, whose errors name the accepted values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from egress.typed_model import TypedModel
from egress.urls import EndpointUrl

WEEK_SECONDS = 7 * 86400.0
MIN_KEY_LENGTH = 32
"""Characters below which a chosen key causes a warning."""

SHELL = "builtin:shell"
DEFAULT_MODEL = "default"
"""The name by which an agent record asks for the operator's model."""
LANGUAGE_MODEL = re.compile(r"^(openai|anthropic|google|ollama):\S+$")
ENTRY_PREFIX = "entry:"
ENTRY_MODEL = re.compile(r"^entry:[A-Za-z0-9_.-]{1,100}$")
"""An agent of an installed package in place of a model."""


class Role(StrEnum):
    """A role of a gateway process."""

    INGRESS = "ingress"
    TURNS = "turns"
    DELIVERY = "delivery"
    REAPER = "reaper"


def _split_commas(value: object) -> object:
    """Split a comma-separated string into a list."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def split_list(value: object) -> object:
    """Split a comma-separated string into a list; an empty string gives an empty list."""
    return [] if isinstance(value, str) and not value.strip() else _split_commas(value)


def _expand_roles(value: object) -> object:
    parts = _split_commas(value)
    return [role.value for role in Role] if isinstance(parts, list) and parts == ["all"] else parts


def _require_roles(value: frozenset[Role]) -> frozenset[Role]:
    if not value:
        raise ValueError("at least one role is needed: all, or some of ingress, turns, delivery, reaper")
    return value


def _require_secret(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().strip():
        raise ValueError("is blank: give it a value, or leave it out to do without")
    return value


def _require_timezone(value: str) -> str:
    try:
        return ZoneInfo(value).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"there is no time zone {value!r}: use a name of IANA, such as Europe/Berlin"
        ) from None


def _require_text(value: str) -> str:
    if not value.strip():
        raise ValueError("is blank: give it a value, or leave it out")
    return value


def _parse_network(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return ip_network(value, strict=True)
    except ValueError as error:
        raise ValueError(f"{error}: write networks as CIDR, such as 10.0.0.0/8") from None


def _split_url(value: str) -> Any:
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"is no URL: {error}") from None
    return parts


def _check_origin(value: str) -> str:
    parts = _split_url(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path not in {"", "/"}:
        raise ValueError("must be an exact origin such as https://chat.example.org, without a path or *")
    return f"{parts.scheme}://{parts.netloc}".lower()


def _check_nats_url(value: SecretStr) -> SecretStr:
    for url in value.get_secret_value().split(","):
        parts = _split_url(url.strip())
        if parts.scheme not in {"nats", "tls", "ws", "wss"} or not parts.hostname:
            raise ValueError("must be nats://[user:password@]host:port (tls, ws, wss; several with commas)")
    return value


_MODEL_FORMS = "builtin:shell, openai:NAME, anthropic:NAME, google:NAME, ollama:NAME or entry:NAME"


def _check_model(value: str) -> str:
    if value != SHELL and not LANGUAGE_MODEL.match(value) and not ENTRY_MODEL.match(value):
        raise ValueError(f"must be {_MODEL_FORMS}")
    return value


def _check_agent_model(value: str) -> str:
    if value == DEFAULT_MODEL:
        return value
    try:
        return _check_model(value)
    except ValueError as error:
        raise ValueError(f"must be default, {_MODEL_FORMS}") from error


def _resolve_directory(value: Path) -> Path:
    try:
        return value.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"{value}: there is no home directory for ~; write the whole path") from error


def _check_language_model(value: str) -> str:
    if not LANGUAGE_MODEL.match(value):
        raise ValueError("must be openai:NAME, anthropic:NAME, google:NAME or ollama:NAME")
    return value


SecretValue = Annotated[SecretStr, AfterValidator(_require_secret)]
Directory = Annotated[Path, AfterValidator(_resolve_directory)]
TimeZone = Annotated[str, AfterValidator(_require_timezone)]
NonBlankText = Annotated[str, AfterValidator(_require_text)]
SecretValues = Annotated[tuple[SecretValue, ...], BeforeValidator(_split_commas)]
Roles = Annotated[frozenset[Role], BeforeValidator(_expand_roles), AfterValidator(_require_roles)]
CidrNetwork = Annotated[IPv4Network | IPv6Network, BeforeValidator(_parse_network)]
CidrNetworks = Annotated[tuple[CidrNetwork, ...], BeforeValidator(split_list)]
WebUrl = EndpointUrl
Origins = Annotated[tuple[Annotated[str, AfterValidator(_check_origin)], ...], BeforeValidator(split_list)]
NatsUrl = Annotated[SecretStr, AfterValidator(_require_secret), AfterValidator(_check_nats_url)]
ModelName = Annotated[str, AfterValidator(_check_model)]
AgentModelName = Annotated[str, AfterValidator(_check_agent_model)]
"""The model of an agent record: a model's name, or `default` for the operator's."""
LanguageModelName = Annotated[str, AfterValidator(_check_language_model)]
ModelNames = Annotated[tuple[LanguageModelName, ...], BeforeValidator(split_list)]
Delays = Annotated[
    tuple[Annotated[float, Field(gt=0, le=WEEK_SECONDS)], ...],
    BeforeValidator(_split_commas),
    Field(min_length=1, max_length=20),
]
Seconds = Annotated[float, Field(gt=0, le=WEEK_SECONDS)]


MAX_BUDGET = 2**53
"""Requests or tokens of a budget."""
MAX_BUDGET_COST = 1_000_000_000
"""Cost of a budget: counters hold it in millionths."""


class FrozenSettings(TypedModel):
    """Base of the settings' tables: immutable, unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class LimitSettings(FrozenSettings):
    """Ceilings of one turn of the default agent; 0 means none."""

    requests: int = Field(default=50, ge=0, le=10_000, description="model requests in one turn")
    input_tokens: int = Field(default=0, ge=0, alias="inputTokens", description="tokens read by the model")
    output_tokens: int = Field(
        default=0, ge=0, alias="outputTokens", description="tokens written by the model"
    )
    total_tokens: int = Field(default=0, ge=0, alias="totalTokens", description="tokens read and written")
    context_tokens: int = Field(
        default=128_000,
        ge=1_000,
        alias="contextTokens",
        description="size of the model's context window, for compaction",
    )
    turn_timeout: Seconds = Field(
        default=3600.0, alias="turnTimeoutSeconds", description="seconds a turn may take, at most 7 days"
    )
    step_timeout: Seconds = Field(
        default=180.0, alias="stepTimeoutSeconds", description="seconds one model request may take"
    )
    budget_seconds: float = Field(
        default=0, ge=0, alias="budgetSeconds", description="active sandbox seconds, in all turns together"
    )
    budget_requests: int = Field(
        default=0, ge=0, alias="budgetRequests", description="model requests, in all turns together"
    )
    budget_tokens: int = Field(
        default=0, ge=0, alias="budgetTokens", description="tokens read and written, in all turns together"
    )
    budget_cost: float = Field(
        default=0,
        ge=0,
        alias="budgetCost",
        description="cost in the currency of `prices`, in all turns together",
    )
    budget_day_requests: int = Field(
        default=0, ge=0, le=MAX_BUDGET, alias="budgetDayRequests", description="model requests per day"
    )
    budget_day_tokens: int = Field(
        default=0, ge=0, le=MAX_BUDGET, alias="budgetDayTokens", description="tokens per day"
    )
    budget_day_cost: float = Field(
        default=0, ge=0, le=MAX_BUDGET_COST, alias="budgetDayCost", description="cost per day"
    )
    budget_month_requests: int = Field(
        default=0, ge=0, le=MAX_BUDGET, alias="budgetMonthRequests", description="model requests per month"
    )
    budget_month_tokens: int = Field(
        default=0, ge=0, le=MAX_BUDGET, alias="budgetMonthTokens", description="tokens per month"
    )
    budget_month_cost: float = Field(
        default=0, ge=0, le=MAX_BUDGET_COST, alias="budgetMonthCost", description="cost per month"
    )
    repeated_calls: int = Field(
        default=5,
        ge=2,
        le=1000,
        alias="repeatedCalls",
        description="identical tool calls before a turn stops",
    )


class AgentSettings(FrozenSettings):
    """The default agent, which runs turns until an account creates its own."""

    model: ModelName = Field(
        default="builtin:shell",
        description="builtin:shell, openai:NAME, anthropic:NAME, google:NAME, ollama:NAME or entry:NAME",
    )
    instructions: str = Field(
        default="", max_length=100_000, description="instructions for the model (system prompt)"
    )
    base_url: WebUrl | None = Field(default=None, description="an OpenAI-compatible server's base URL")
    fallback: ModelNames = Field(default=(), description="models tried in order when the first one fails")
    model_choices: ModelNames = Field(
        default=(), alias="modelChoices", description="models that people may select with /model"
    )
    limits: LimitSettings = Field(default=LimitSettings(), description="ceilings of one turn")


MEGABYTE = 1_000_000


MIN_RETENTION_DAYS = 30
"""Keys of platform events and requests are kept this long, and name turns and messages."""


def _retention_days(days: int) -> int:
    if 0 < days < MIN_RETENTION_DAYS:
        raise ValueError(f"must be 0 (keep) or at least {MIN_RETENTION_DAYS} days")
    return days


RetentionDays = Annotated[int, Field(ge=0, le=36500), AfterValidator(_retention_days)]


class RetentionSettings(FrozenSettings):
    """Days after which old rows are deleted; 0 keeps them. Nothing that is unfinished is deleted.

    `client_calls` is how long a turn may be unfinished because its client returns no results.
    """

    turns: RetentionDays = Field(
        default=90, description="days ended turns, tool calls, approvals and jobs' output are kept; 0: always"
    )
    messages: RetentionDays = Field(
        default=365, description="days the messages of conversations are kept; 0: always"
    )
    deliveries: RetentionDays = Field(
        default=30, description="days delivered messages and webhooks are listed; 0: always"
    )
    usage: RetentionDays = Field(
        default=400, description="days single usage records are kept; 0: always; totals stay"
    )
    audit: RetentionDays = Field(default=365, description="days the audit log is kept; 0: always")
    client_calls: int = Field(
        default=7,
        ge=0,
        le=36500,
        description="days a turn waits for the results of its client's tools; 0: always",
    )


class VendorSettings(FrozenSettings):
    """Keys of model vendors, from the variables they usually have."""

    openai_api_key: SecretValue | None = Field(default=None, description="OPENAI_API_KEY")
    openai_base_url: WebUrl | None = Field(default=None, description="OPENAI_BASE_URL")
    anthropic_api_key: SecretValue | None = Field(default=None, description="ANTHROPIC_API_KEY")
    anthropic_base_url: WebUrl | None = Field(default=None, description="ANTHROPIC_BASE_URL")
    google_api_key: SecretValue | None = Field(default=None, description="GOOGLE_API_KEY or GEMINI_API_KEY")
    google_base_url: WebUrl | None = Field(default=None, description="GOOGLE_GEMINI_BASE_URL")
    ollama_url: WebUrl | None = Field(default=None, description="OLLAMA_HOST")


KNOWN_PROVIDERS = ("agentrun", "aws_lambda", "daytona", "docker", "e2b", "host", "kubernetes", "lambda")
"""Known sandbox providers; their tables may be in the file before they are installed."""


class BucketSettings(FrozenSettings):
    """A bucket of an S3-compatible store."""

    bucket: str = Field(default="", description="the bucket's name")
    prefix: str = Field(default="dovecote/", description="prefix of the object names")
    endpoint: WebUrl | None = Field(default=None, description="the store's URL, if it is not AWS")
    region: str = Field(default="us-east-1", description="the bucket's region")
    access_key: SecretValue | None = Field(
        default=None, description="the access key; without it the AWS SDK's default credentials are used"
    )
    secret_key: SecretValue | None = Field(default=None, description="the secret key of the access key")

    def with_secrets(self) -> dict[str, Any]:
        """Return the bucket with its keys in clear: for the store that is opened with them."""
        keys = {"access_key": self.access_key, "secret_key": self.secret_key}
        clear = {name: key.get_secret_value() if key else None for name, key in keys.items()}
        return {**self.model_dump(include={"bucket", "prefix", "endpoint", "region"}), **clear}


class WorkspaceSettings(FrozenSettings):
    """Where the files of workspaces are stored, and `[workspaces.NAME]`: further ones of the account."""

    model_config = ConfigDict(frozen=True, extra="allow")

    store: Literal["directory", "s3"] = Field(
        default="directory",
        description="where workspace files are stored: directory (data_dir) or s3 (a bucket)",
    )
    s3: BucketSettings = Field(default=BucketSettings(), description="the bucket of workspaces")
    sync_interval: float = Field(
        default=30.0, gt=0, le=3600, description="seconds between checks for files that are not in s3 yet"
    )
    __pydantic_extra__: dict[str, dict[str, Any]] = Field(init=False)

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The workspaces that the file declares, by name."""
        return self.__pydantic_extra__ or {}


class PriceSettings(FrozenSettings):
    """The price of a model per million tokens."""

    input: float = Field(default=0.0, ge=0, description="for a million tokens read")
    output: float = Field(default=0.0, ge=0, description="for a million tokens written")


def list_fields(model: type[BaseModel]) -> Mapping[str, frozenset[str]]:
    """Return the list fields of a plugin's settings, which accept comma-separated text.

    The values are the single words that a field accepts in place of a list, such as `anyone`.
    """
    found: dict[str, frozenset[str]] = {}
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        if {get_origin(kind) for kind in kinds} & {tuple, list, set, frozenset}:
            words = (get_args(kind) for kind in kinds if get_origin(kind) is Literal)
            found[name] = frozenset(str(word) for some in words for word in some)
    return found
