"""Listeners: the web server and the callback sockets of sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web

from delivery.database.engine import DAMAGED, READ_ONLY, DatabaseDamaged, DatabaseUnavailable
from delivery.exhaustion import EXHAUSTED, exhausted_resource
from egress.policy import EgressPolicy
from gateway.accounts import stream_tickets
from gateway.accounts.api_keys import ApiKeyAuthenticator
from gateway.accounts.entry_codes import EntryCodes
from gateway.accounts.stream_tickets import StreamTickets
from gateway.accounts.vault import Secret
from gateway.environments.quotas import load_quotas
from gateway.infra.backing_services import BackingServices
from gateway.infra.data_dir import remove_at_end, separate_disks
from gateway.infra.preflight import ListenFailed
from gateway.ingress.channel_supervisor import ChannelSupervisor
from gateway.observability.disk import ANSWER_SECONDS, DiskProbe
from gateway.observability.readiness import Health, assess
from gateway.records.records import Records
from gateway.services import Services
from gateway.sign_in import attempt
from gateway.sign_in.fetching import ProviderConnection
from gateway.sign_in.oidc_sign_in import OidcSignIn
from gateway.sign_in.provider import IdentityProvider
from gateway.store.accounts import accounts
from gateway.web.callback_connection import CallbackRunner
from gateway.web.http.connection_limit import LimitedAppRunner
from gateway.web.http.context import WebContext, WebLimits
from gateway.web.server import build, build_callbacks

log = structlog.get_logger(__name__)

ALL_IPV4 = "0.0.0.0"  # noqa: S104 - listened on if the operator chose `::`


@asynccontextmanager
async def open_listeners(
    backing: BackingServices,
    services: Services,
    records: Records,
    channel_supervisor: ChannelSupervisor,
    entry_codes: EntryCodes,
) -> AsyncIterator[str]:
    """Listen on the configured address and on the callback sockets; yields the base URL."""
    context = _web_context(backing, services, records, channel_supervisor, entry_codes)
    runner = LimitedAppRunner(
        build(context),
        context.limits,
        trusted_proxies=context.trusted_proxies,
        access_log=None,
        shutdown_timeout=2.0,
    )
    callbacks = CallbackRunner(build_callbacks(context), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    await callbacks.setup()
    try:
        async with backing.callback_sockets.serving(callbacks.connect):
            yield await _listen(backing, runner)
    finally:
        await runner.cleanup()
        await callbacks.cleanup()
        remove_at_end(backing.settings.data_dir / "url")


async def _listen(backing: BackingServices, runner: web.AppRunner) -> str:
    settings = backing.settings
    await _start_site(runner, settings.host, settings.port)
    host, port = runner.addresses[0][:2]
    if host == "::":  # asyncio takes IPv6 alone there; "all addresses" includes those of IPv4
        await _start_site(runner, ALL_IPV4, port)
    shown = "127.0.0.1" if host in {ALL_IPV4, "::"} else host
    url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    (settings.data_dir / "url").write_text(url)
    return url


async def _start_site(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise ListenFailed(host, port, error) from error


def _web_context(
    backing: BackingServices,
    services: Services,
    records: Records,
    channel_supervisor: ChannelSupervisor,
    entry_codes: EntryCodes,
) -> WebContext:
    settings = backing.settings
    disk_probe = DiskProbe(
        _written_directories(backing), list_further=partial(separate_disks, settings.data_dir)
    )
    return WebContext(
        database=backing.database,
        records=records,
        api_key_authenticator=ApiKeyAuthenticator(backing.database),
        services=services,
        sole_process_since=backing.sole_process_since,
        presence=backing.presence,
        admin_key=Secret(settings.admin_key.get_secret_value()) if settings.admin_key else None,
        public_url=settings.public_url,
        entry_codes=entry_codes,
        sign_in=_open_sign_in(backing),
        allowed_origins=frozenset(settings.allowed_origins),
        stream_tickets=StreamTickets(keys=backing.vault.keys_for(stream_tickets.PURPOSE)),
        trusted_proxies=tuple(settings.trusted_proxies),
        limits=WebLimits(
            requests_per_minute=settings.requests_per_minute,
            records=settings.record_limit,
            webhooks=settings.webhook_limit,
        ),
        channels=channel_supervisor,
        workspaces=services.environment_resolver.workspaces,
        quotas=load_quotas(settings.sandbox),
        storage_quota=services.file_services.quota,
        on_channel_changed=channel_supervisor.wake,
        health=lambda: _health(backing, channel_supervisor, disk_probe),
        metrics=backing.metrics.render,
        observe_request=backing.metrics.count_request,
    )


def _open_sign_in(backing: BackingServices) -> OidcSignIn | None:
    """Return the sign-in with the configured identity provider, if there is one."""
    settings = backing.settings
    issuer, public_url = settings.oidc.issuer, settings.public_url
    if issuer is None or public_url is None:
        return None
    policy = EgressPolicy(allow=settings.egress_allow)
    return OidcSignIn(
        settings=settings.oidc,
        provider=IdentityProvider(ProviderConnection(issuer=issuer, policy=policy)),
        database=backing.database,
        public_url=public_url,
        keys=backing.vault.keys_for(attempt.PURPOSE),
    )


async def _health(
    backing: BackingServices, channel_supervisor: ChannelSupervisor, disk_probe: DiskProbe
) -> Health:
    disk, database = await asyncio.gather(disk_probe.run(), _database_state(backing))
    return assess(
        backing.settings.roles,
        database=database,
        resources=disk.resources,
        broker=backing.nats.state,
        channels_loaded=channel_supervisor.is_loaded,
        is_disk_low=disk.is_low,
        disk_concern=disk.concern,
        fill_ratio=backing.stream.usage.fill,
    )


def _written_directories(backing: BackingServices) -> tuple[Path, ...]:
    """Return the data directory, and the directory of a SQLite file that is elsewhere."""
    url = backing.database.url
    file = [Path(url.database).parent] if backing.database.is_sqlite and url.database else []
    return tuple(dict.fromkeys([backing.settings.data_dir, *file]))


async def _database_state(backing: BackingServices) -> str:
    """Return "ok", or what is wrong without the driver's text, which can name hosts and users."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS), backing.database.read() as connection:
            await accounts.get_account(connection, name="default")
            if backing.database.is_damaged:
                return DAMAGED
            if await backing.database.is_read_only():
                return READ_ONLY
    except TimeoutError:
        return f"does not answer within {ANSWER_SECONDS:g} s"
    except DatabaseUnavailable as error:
        log.warning("readiness.database_unavailable", error=error)
        if isinstance(error, DatabaseDamaged):
            return DAMAGED
        resource = exhausted_resource(error)
        return EXHAUSTED[resource] if resource else "does not answer"
    return "ok"
