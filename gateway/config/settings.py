"""The settings: one immutable value, read once; no other code reads the environment.

A flag overrides a `DOVECOTE_*` variable (`__` between nested keys), which overrides `.env`, which overrides
`dovecote.toml`. All problems are reported together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_data_path
from pydantic import BaseModel, Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from delivery.fair_scheduler import DEFAULT_SHARE, PoolSize
from egress.typed_model import TypedModel
from gateway.config.database_url import DatabaseUrl, sqlite_url
from gateway.config.file_settings import FileSettings, SkillSettings, SpeechSettings, TranscriptionSettings
from gateway.config.sandbox_settings import SandboxSettings
from gateway.config.setting_types import (
    MIN_KEY_LENGTH,
    WEEK_SECONDS,
    AgentSettings,
    CidrNetworks,
    Delays,
    Directory,
    NatsUrl,
    NonBlankText,
    Origins,
    PriceSettings,
    RetentionSettings,
    Role,
    Roles,
    Seconds,
    SecretValue,
    SecretValues,
    TimeZone,
    VendorSettings,
    WebUrl,
    WorkspaceSettings,
)
from gateway.config.sign_in_settings import OidcSettings
from gateway.config.sources import SettingProblem, mask

__all__ = ["AgentSettings", "InvalidSettings", "Role", "SandboxSettings", "SettingProblem", "Settings"]

DEFAULT_FILE = "dovecote.toml"


SERVICE_DATA_DIR = Path("/var/lib/dovecote")
"""The data directory of a user without a home directory."""


def _default_data_dir() -> Path:
    try:
        return user_data_path("dovecote")
    except RuntimeError:  # there is neither HOME nor an entry in passwd
        return SERVICE_DATA_DIR


class Settings(BaseSettings, TypedModel):
    """The operator's settings; created by `load`."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    data_dir: Directory = Field(
        default_factory=_default_data_dir, description="where the gateway stores its files"
    )
    host: NonBlankText = Field(
        default="127.0.0.1",
        description="the address to listen on; `0.0.0.0`: all of IPv4, `::`: all of IPv4 and IPv6",
    )
    port: int = Field(default=8080, ge=0, le=65535, description="the port to listen on; 0 selects a free one")
    roles: Roles = Field(
        default=frozenset(Role), description="all, or some of ingress, turns, delivery, reaper"
    )
    nats_url: NatsUrl | None = Field(
        default=None, description="the NATS server; without it the gateway starts its own"
    )
    nats_bin: Path | None = Field(default=None, description="the nats-server program to start (NATS_BIN)")
    database_url: DatabaseUrl | None = Field(
        default=None,
        description="postgresql:// or sqlite:///; without it a SQLite file in the data directory",
    )
    public_url: WebUrl | None = Field(
        default=None,
        description="the URL at which platforms, sandboxes and webhook receivers reach the gateway",
    )
    secret_keys: SecretValues = Field(
        default=(),
        description="keys that encrypt stored secrets: the first encrypts, all decrypt",
    )
    admin_key: SecretValue | None = Field(
        default=None, description="the operator's key, which may create accounts"
    )
    log_format: Literal["console", "json"] = Field(default="console", description="console or json")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error"
    )
    log_file_mb: int = Field(
        default=20,
        ge=0,
        le=100_000,
        description="MiB of log in the data directory, for `dovecote logs`; 0: none",
    )
    egress_allow: CidrNetworks = Field(
        default=(),
        description="private networks that webhooks and channels of accounts may call, as CIDR, "
        "separated by commas",
    )
    trusted_proxies: CidrNetworks = Field(
        default=(), description="networks whose X-Forwarded-For header is trusted, as CIDR"
    )
    allowed_origins: Origins = Field(
        default=(), description="further web origins whose pages may use the API and the WebSocket"
    )
    timezone: TimeZone = Field(
        default="UTC", description="the time zone of schedules that name none, such as Europe/Berlin"
    )
    oidc: OidcSettings = Field(default=OidcSettings(), description="sign-in to the console")
    agent: AgentSettings = Field(default=AgentSettings(), description="the default agent")
    vendors: VendorSettings = Field(default=VendorSettings(), description="keys of model vendors")
    sandbox: SandboxSettings = Field(default=SandboxSettings(), description="where commands run")
    workspaces: WorkspaceSettings = Field(
        default=WorkspaceSettings(), description="where workspaces' files live"
    )
    files: FileSettings = Field(default=FileSettings(), description="files both ways")
    transcription: TranscriptionSettings = Field(
        default=TranscriptionSettings(), description="voice messages as text"
    )
    speech: SpeechSettings = Field(default=SpeechSettings(), description="answers as voice files")
    retention: RetentionSettings = Field(
        default=RetentionSettings(), description="days after which old rows are deleted"
    )
    channels: dict[str, dict[str, Any]] = Field(
        default_factory=dict, repr=False, description="[channels.NAME]: the default account's channels"
    )
    agents: dict[str, dict[str, Any]] = Field(
        default_factory=dict, repr=False, description="[agents.NAME]: further agents of the default account"
    )
    sandboxes: dict[str, dict[str, Any]] = Field(
        default_factory=dict, repr=False, description="[sandboxes.NAME]: its further sandboxes"
    )
    credentials: dict[str, dict[str, Any]] = Field(
        default_factory=dict, repr=False, description="[credentials.NAME]: its credentials for hosts"
    )
    schedules: dict[str, dict[str, Any]] = Field(
        default_factory=dict, repr=False, description="[schedules.NAME]: its schedules"
    )
    skills: SkillSettings = Field(default=SkillSettings(), description="skills of the default account")
    allow_unsandboxed_host: bool = Field(
        default=False, description="run commands as plain processes where namespaces are forbidden"
    )
    allow_shared_host: bool = Field(
        default=False, description="let several accounts run commands on this machine"
    )
    webhook_schedule: Delays = Field(
        default=(5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 36000.0),
        description="seconds to wait before each further attempt at a webhook",
    )
    event_max_age: Seconds = Field(
        default=WEEK_SECONDS, description="seconds a conversation's events are stored"
    )
    event_log_bytes: int | None = Field(
        default=None,
        ge=16 * 1024**2,
        le=2**50,
        description="most bytes of events in NATS; none: 2.8 GiB, or 70 % of the storage "
        "of the gateway's own",
    )
    lease_ttl: float = Field(
        default=6.0,
        ge=1,
        le=300,
        description="seconds until another replica takes over a dead replica's work",
    )
    watchdog_timeout: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="seconds until a gateway with a blocked event loop ends, `lease_ttl` at least; 0: never",
    )
    reconcile_interval: float = Field(
        default=5.0, gt=0, le=15, description="seconds between checks of jobs whose callback may be lost"
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="number of gateways on this database; settings that replicas cannot share are refused",
    )
    shared_files: bool = Field(
        default=False, description="the data directory is on a file system that all replicas share"
    )
    prices: dict[str, PriceSettings] = Field(
        default={}, description='[prices."openai:NAME"]: what a model costs, for budgets'
    )
    turn_workers: int = Field(
        default=64, ge=1, le=1024, description="turns in progress at once in this process"
    )
    delivery_workers: int = Field(default=64, ge=1, le=1024, description="deliveries in progress at once")
    account_share: float = Field(
        default=DEFAULT_SHARE,
        gt=0,
        le=1,
        description="part of each pool of workers that one account may use, so that others need not wait",
    )
    requests_per_minute: int = Field(
        default=60_000,
        ge=1,
        description="HTTP requests and WebSocket frames per minute of a key, or of an address without one",
    )
    queue_limit: int = Field(default=50, ge=1, le=10_000, description="waiting turns of one conversation")
    record_limit: int = Field(
        default=1000, ge=1, le=1000, description="records of each kind (agents, …) of one account; its keys"
    )
    webhook_limit: int = Field(default=100, ge=1, le=1000, description="webhooks of one account")
    schedule_limit: int = Field(
        default=1000, ge=0, le=100_000, description="active and paused schedules of one account"
    )
    memory_limit: int = Field(default=10_000, ge=0, le=1_000_000, description="memories of one account")
    memory_context_bytes: int = Field(
        default=4000, ge=0, le=100_000, description="bytes of memories in the context of a turn; 0: none"
    )
    job_progress_after: float = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="seconds until a running job has a message in its chat, which is then updated; 0: never",
    )
    job_limit: int = Field(
        default=10,
        ge=1,
        le=100,
        description="running jobs of one sandbox; calls of one account that are jobs",
    )
    drain_timeout: float = Field(
        default=8.0, ge=0, le=600, description="seconds that running turns may take when the gateway stops"
    )
    message_retry_period: float = Field(
        default=1200.0,
        ge=0,
        le=86_400,
        description="seconds for which a message's turn is retried while the model is unavailable",
    )
    job_retry_period: float = Field(
        default=28_800.0,
        ge=0,
        le=604_800,
        description="seconds for which a job's follow-up turn is retried while the model is unavailable",
    )
    url: WebUrl | None = Field(default=None, description="the gateway that client commands talk to")
    key: SecretValue | None = Field(default=None, description="the API key that client commands use")
    fault_point: str | None = Field(default=None, description="kill the process at this fault point (tests)")

    @classmethod
    def settings_customise_sources(  # the signature is the library's
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use the values of the caller only: `load` has merged the sources already."""
        return (init_settings,)

    @property
    def database(self) -> str:
        """The database in force: the configured one, or the SQLite file of the data directory."""
        if self.database_url:
            return self.database_url.get_secret_value()
        return sqlite_url(self.data_dir / "dovecote.db")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the gateway."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def pool(self, places: int) -> PoolSize:
        """Return the size of a pool of workers that accounts share."""
        return PoolSize(places=places, share=self.account_share)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about settings that are valid but risky."""
        found: list[str] = []
        if not self.is_local and not (self.public_url or "").startswith("https://"):
            found.append(
                f"plain HTTP on {self.host}: keys travel in the clear; "
                "put TLS in front and set public_url to https"
            )
        keys = [key for key in (self.admin_key, *self.secret_keys) if key]
        if any(len(key.get_secret_value()) < MIN_KEY_LENGTH for key in keys):
            found.append(f"admin_key or secret_keys of fewer than {MIN_KEY_LENGTH} characters may be guessed")
        if self.allow_unsandboxed_host:
            found.append(
                "allow_unsandboxed_host: commands may run as plain processes with the gateway's rights"
            )
        return tuple(found)

    def secrets(self) -> frozenset[str]:
        """Return every secret value, so that logs can redact them."""
        return frozenset(_secret_values(self))


class InvalidSettings(Exception):
    """The settings are invalid; contains every problem found.

    `valid_part` has the settings without the values that are wrong, so that the rest can be checked as well.
    """

    remedy = "operator"

    def __init__(self, problems: tuple[SettingProblem, ...], valid_part: Settings | None = None) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
        self.valid_part = valid_part


def _secret_values(value: object, keys: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel | Mapping):
        for key, inner in dict(value).items():
            yield from _secret_values(inner, (*keys, str(key)))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _secret_values(inner, keys)
    elif isinstance(value, str) and mask(keys, value) == "'***'":
        yield value


def masked(value: object, keys: tuple[str, ...] = ()) -> Any:
    """Return settings as JSON, with every secret masked."""
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, Mapping):
        return {str(key): masked(inner, (*keys, str(key))) for key, inner in value.items()}
    if isinstance(value, SecretStr):
        return "***"
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [masked(inner, keys) for inner in value]
    if isinstance(value, bool | int | float) or value is None:
        return value
    return "***" if mask(keys, str(value)) == "'***'" else str(value)
