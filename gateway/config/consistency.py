"""Settings that are right one by one and cannot work together, above all with several replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING

from gateway.config.sources import SettingProblem, SettingSources
from sandbox.errors import install_command

if TYPE_CHECKING:
    from egress.urls import EndpointUrl
    from gateway.config.setting_types import BucketSettings
    from gateway.config.settings import Settings


def inconsistencies(sources: SettingSources, settings: Settings) -> Iterator[SettingProblem]:
    """Yield settings that contradict each other."""
    if settings.sandbox.snapshots == "s3":
        bucket = settings.sandbox.snapshot_s3
        yield from _bucket_problems(sources, ("sandbox", "snapshots"), ("sandbox", "snapshot_s3"), bucket)
    if settings.sandbox.snapshots == "redis":
        yield from _redis_problems(sources, settings)
    if settings.workspaces.store == "s3":
        bucket = settings.workspaces.s3
        yield from _bucket_problems(sources, ("workspaces", "store"), ("workspaces", "s3"), bucket)
        yield from _shared_files_problems(sources, settings)
    yield from _sign_in_problems(sources, settings)
    if settings.replicas > 1:
        yield from _replica_problems(sources, settings)


def _sign_in_problems(sources: SettingSources, settings: Settings) -> Iterator[SettingProblem]:
    """Check that people can sign in, if there is any setting of it."""
    oidc, chosen_by = settings.oidc, ("oidc", "issuer")
    if oidc.issuer is None:
        if oidc.client_id is not None or oidc.client_secret is not None or oidc.access:
            remedy = "Set oidc.issuer to the provider's URL, or remove the table"
            yield _problem(sources, ("oidc",), "", "no identity provider is named", remedy)
        return
    shown = repr(str(oidc.issuer))
    if not _is_safe(oidc.issuer):
        remedy = "Use its https URL; http is for a provider on this machine"
        yield _problem(sources, chosen_by, shown, "tokens would travel in the clear", remedy)
    if oidc.client_id is None:
        yield _problem(sources, chosen_by, shown, "the client has no id", "Set oidc.client_id")
    if settings.public_url is None:
        remedy = "Set public_url; the provider sends people back to its path /console/oidc/callback"
        yield _problem(sources, chosen_by, shown, "the gateway has no public URL", remedy)
    if "openid" not in oidc.scope.split():
        yield _problem(sources, ("oidc", "scope"), repr(oidc.scope), "openid is missing", "Add openid to it")
    if not oidc.access:
        remedy = 'Add [oidc.access."VALUE"] with account and scopes for each value of the claim'
        yield _problem(sources, chosen_by, shown, "no claim value grants access", remedy)


def _is_safe(url: EndpointUrl) -> bool:
    """Return whether a URL is https, or leads to this machine."""
    host = url.origin.host.strip("[]")
    with suppress(ValueError):
        return url.origin.scheme == "https" or ip_address(host).is_loopback
    return host == "localhost"


def _bucket_problems(
    sources: SettingSources, chosen_by: tuple[str, ...], table: tuple[str, ...], bucket: BucketSettings
) -> Iterator[SettingProblem]:
    """Check that a bucket has a name, both keys or none, and an S3 client."""
    place = ".".join(table)
    if not bucket.bucket:
        yield _problem(sources, chosen_by, "'s3'", "no bucket is named", f"Set {place}.bucket")
    given = {"access_key": bucket.access_key, "secret_key": bucket.secret_key}
    if any(given.values()) and not all(given.values()):
        there, lacking = sorted(given, key=lambda name: given[name] is None)
        yield _problem(
            sources, (*table, there), "'***'", f"{lacking} is missing", f"Set {place}.{lacking} as well"
        )
    if find_spec("aiobotocore") is None:
        yield _problem(
            sources,
            chosen_by,
            "'s3'",
            "the S3 client is not installed",
            f"Run {install_command('s3')}",
        )


def _redis_problems(sources: SettingSources, settings: Settings) -> Iterator[SettingProblem]:
    """Check that a server of snapshots is named, and that there is a client for its scheme."""
    chosen_by, url = ("sandbox", "snapshots"), settings.sandbox.snapshot_redis.url
    if url is None:
        remedy = "Set sandbox.snapshot_redis.url, for example to redis://127.0.0.1:6379/0"
        yield _problem(sources, chosen_by, "'redis'", "no server is named", remedy)
    elif not url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
        keys = ("sandbox", "snapshot_redis", "url")
        yield _problem(sources, keys, "'***'", "the scheme is unknown", "Use redis://, rediss:// or unix://")
    if find_spec("redis") is None:
        remedy = f"Run {install_command('redis')}"
        yield _problem(sources, chosen_by, "'redis'", "the Redis client is not installed", remedy)


def _shared_files_problems(sources: SettingSources, settings: Settings) -> Iterator[SettingProblem]:
    if settings.shared_files:
        yield _problem(
            sources,
            ("workspaces", "store"),
            "'s3'",
            "shared_files means that all replicas share one directory, but each needs its own working copies",
            "Set workspaces.store to directory, or give each replica its own data_dir without shared_files",
        )


def _replica_problems(sources: SettingSources, settings: Settings) -> Iterator[SettingProblem]:
    """Check that replicas can read each other's data."""
    several = f"{settings.replicas} replicas"
    if settings.database.startswith("sqlite"):
        yield _problem(
            sources,
            ("replicas",),
            str(settings.replicas),
            "a SQLite file supports one gateway only",
            "Set database_url to a PostgreSQL database, or replicas to 1",
        )
    if settings.nats_url is None:
        yield _problem(
            sources,
            ("replicas",),
            str(settings.replicas),
            "replicas cannot use the embedded broker of another gateway",
            "Set nats_url to a NATS server of all replicas, or replicas to 1",
        )
    if settings.shared_files:
        return
    if settings.workspaces.store == "directory":
        yield _problem(
            sources,
            ("workspaces", "store"),
            "'directory'",
            "workspaces are directories of this machine, which other replicas cannot read",
            f"Set it to s3, or put data_dir of {several} on one file system and set shared_files, "
            "or set replicas to 1",
        )
    if settings.sandbox.snapshots == "local":
        yield _problem(
            sources,
            ("sandbox", "snapshots"),
            "'local'",
            f"{several} cannot restore snapshots that are stored on one machine",
            "Set it to s3, nats, redis or none, or set shared_files",
        )


def _problem(
    sources: SettingSources, keys: tuple[str, ...], value: str, detail: str, remedy: str
) -> SettingProblem:
    source = sources.source_of(keys)
    return SettingProblem(key=".".join(keys), value=value, source=source, detail=detail, remedy=remedy)
