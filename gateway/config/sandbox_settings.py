"""The settings of sandboxes: the provider, snapshots, and what accounts may ask for."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from gateway.config.setting_types import (
    BucketSettings,
    CidrNetworks,
    FrozenSettings,
    NonBlankText,
    SecretValue,
    split_list,
)
from sandbox.config import EXTERNAL_NAME

NetworkModes = Annotated[
    tuple[Literal["allow-all", "deny-all", "restricted"], ...], BeforeValidator(split_list)
]
Names = Annotated[tuple[NonBlankText, ...], BeforeValidator(split_list)]

WRITABLE = ":rw"
"""Ends the name of a directory that sandboxes may write."""


def _check_directory(text: str) -> str:
    path = text.removesuffix(WRITABLE)
    if not path.startswith("/") or path == "/" or posixpath.normpath(path) != path:
        raise ValueError(f"{text!r} is not an absolute path, as in /srv/data or /srv/data{WRITABLE}")
    return text


Directories = Annotated[
    tuple[Annotated[NonBlankText, AfterValidator(_check_directory)], ...], BeforeValidator(split_list)
]


def _check_external(text: str) -> str:
    provider, separator, name = text.partition(":")
    if not separator or not provider or not EXTERNAL_NAME.fullmatch(name):
        raise ValueError(f"{text!r} does not name a sandbox, as in docker:my-container")
    return text


ExternalNames = Annotated[
    tuple[Annotated[NonBlankText, AfterValidator(_check_external)], ...], BeforeValidator(split_list)
]


class SandboxCeilings(FrozenSettings):
    """What sandbox records of accounts may ask for at most."""

    networks: NetworkModes | None = Field(
        default=None,
        description="network modes of all accounts; none: every mode for the first account, "
        "deny-all and restricted for the others",
    )
    private_networks: CidrNetworks = Field(
        default=(),
        description="private networks that records may list in allowCidrs, as CIDR, separated by commas",
    )
    memory_mb: int | None = Field(default=None, ge=16, description="the most memory of a sandbox, in MiB")
    disk_gb: float | None = Field(default=None, gt=0, description="the most disk of a sandbox, in GB")
    lifetime: int | None = Field(
        default=None, ge=1, description="seconds after which a reserved sandbox is deleted, at most"
    )
    images: Names | None = Field(
        default=None,
        description="images, templates and snapshots that records may name; "
        "none: those of the provider's table",
    )
    providers: Names | None = Field(
        default=None, description="providers that records may name; none: every installed one"
    )
    mounts: Directories = Field(
        default=(),
        description="directories that records of the first account may mount on docker and host; :rw at the "
        "end also for writing",
    )
    shared_mounts: Directories = Field(
        default=(), description="directories that records of every account may mount, as `mounts`"
    )

    external: ExternalNames = Field(
        default=(),
        description="sandboxes that Dovecote did not create and records of the first account may use, "
        "as PROVIDER:NAME",
    )
    shared_external: ExternalNames = Field(
        default=(), description="external sandboxes that records of every account may use, as `external`"
    )

    @model_validator(mode="after")
    def _check_nesting(self) -> Self:
        """Refuse a directory inside one that sandboxes may write: they could replace it by a link."""
        listed = (*self.mounts, *self.shared_mounts)
        for writable in (one.removesuffix(WRITABLE) for one in listed if one.endswith(WRITABLE)):
            for one in listed:
                if one.removesuffix(WRITABLE).startswith(f"{writable}/"):
                    raise ValueError(
                        f"{one!r} is inside {writable!r}, which sandboxes may write: list one of both"
                    )
        return self


class RedisSettings(FrozenSettings):
    """A Redis server that stores snapshots."""

    url: SecretValue | None = Field(
        default=None, description="the server's URL with its login: redis://, rediss:// or unix://"
    )
    prefix: str = Field(default="dovecote:", description="prefix of the keys")
    ttl_days: int = Field(
        default=60, ge=0, le=3650, description="days after which an unread snapshot is gone; 0: never"
    )

    def with_secrets(self) -> dict[str, Any]:
        """Return the server with its URL in clear: for the store that is opened with it."""
        url = self.url.get_secret_value() if self.url is not None else ""
        return {"url": url, "prefix": self.prefix, "ttl_days": self.ttl_days}


class SandboxSettings(FrozenSettings):
    """The provider of new sandboxes, and each provider's own table, which its plugin validates."""

    model_config = ConfigDict(frozen=True, extra="allow")

    provider: NonBlankText = Field(default="host", description="the provider of the default sandbox")
    snapshots: Literal["none", "local", "s3", "nats", "redis"] = Field(
        default="none",
        description="where snapshots of reserved sandboxes are stored: none, local, s3, nats or redis",
    )
    snapshot_limit_mb: int = Field(default=2048, ge=1, description="the largest snapshot, in MiB")
    snapshot_s3: BucketSettings = Field(default=BucketSettings(), description="the bucket of snapshots")
    snapshot_redis: RedisSettings = Field(
        default=RedisSettings(), description="the Redis server of snapshots"
    )
    max_memory_mb: int | None = Field(
        default=None, ge=16, description="the most memory a sandbox may request, in MiB; none: no limit"
    )
    allow: SandboxCeilings = Field(
        default=SandboxCeilings(), description="what sandbox records of accounts may ask for at most"
    )
    sync_limit_mb: int = Field(
        default=256, ge=1, description="workspace files synced to or from a sandbox at once, in MiB"
    )
    starts: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="sandboxes of one provider that are created at once in this process",
    )
    lock_ttl: float = Field(
        default=30.0,
        ge=3,
        le=1800,
        description="seconds a replica holds its sandbox locks while the database is unavailable",
    )
    lock_timeout: float = Field(
        default=60.0, ge=0, le=600, description="seconds a call waits for a sandbox that another replica uses"
    )
    reap_interval: float = Field(
        default=15.0, gt=0, le=600, description="seconds between checks for idle and expired sandboxes"
    )
    __pydantic_extra__: dict[str, dict[str, Any]] = Field(init=False)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Return the provider only, because the tables contain keys."""
        yield "provider", self.provider

    @property
    def ceilings(self) -> SandboxCeilings:
        """Return the ceilings of accounts; the lower of the two memory limits counts."""
        limits = [one for one in (self.max_memory_mb, self.allow.memory_mb) if one is not None]
        return self.allow.model_copy(update={"memory_mb": min(limits, default=None)})

    @model_validator(mode="after")
    def _default_is_allowed(self) -> Self:
        if self.allow.providers is not None and self.provider not in self.allow.providers:
            raise ValueError(f"allow.providers must contain the default provider {self.provider!r}")
        return self

    @property
    def provider_tables(self) -> Sequence[str]:
        """The providers that have a table."""
        return tuple(self.__pydantic_extra__ or {})

    def for_provider(self, provider: str) -> dict[str, Any]:
        """Return the table of `provider`, empty when it has none."""
        return (self.__pydantic_extra__ or {}).get(provider, {})
