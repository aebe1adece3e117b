"""Listeners: the web server and the callback sockets of sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from delivery.database.engine import DatabaseUnavailable
from gateway.accounts.api_keys import ApiKeyAuthenticator
from gateway.accounts.vault import Secret
from gateway.environments.quotas import load_quotas
from gateway.infra.backing_services import BackingServices
from gateway.infra.preflight import ListenFailed
from gateway.ingress.channel_supervisor import ChannelSupervisor
from gateway.observability.readiness import Health, assess
from gateway.records.records import Records
from gateway.services import Services
from gateway.store.accounts import accounts
from gateway.web.http.callback_connection import CallbackRunner
from gateway.web.http.connection_limit import LimitedAppRunner
from gateway.web.http.context import WebContext, WebLimits
from gateway.web.server import build, build_callbacks


@asynccontextmanager
async def open_listeners(
    backing: BackingServices, services: Services, records: Records, channel_supervisor: ChannelSupervisor
) -> AsyncIterator[str]:
    """Listen on the configured address and on the callback sockets; yields the base URL."""
    context = _web_context(backing, services, records, channel_supervisor)
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
        with suppress(FileNotFoundError):
            (backing.settings.data_dir / "url").unlink()


async def _listen(backing: BackingServices, runner: web.AppRunner) -> str:
    settings = backing.settings
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as error:
        raise ListenFailed(settings.host, settings.port, error) from error
    host, port = runner.addresses[0][:2]
    shown = "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104 - compared, not bound
    url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    (settings.data_dir / "url").write_text(url)
    return url


def _web_context(
    backing: BackingServices, services: Services, records: Records, channel_supervisor: ChannelSupervisor
) -> WebContext:
    settings = backing.settings
    return WebContext(
        database=backing.database,
        records=records,
        api_key_authenticator=ApiKeyAuthenticator(backing.database),
        services=services,
        sole_process_since=backing.sole_process_since,
        presence=backing.presence,
        admin_key=Secret(settings.admin_key.get_secret_value()) if settings.admin_key else None,
        public_url=settings.public_url,
        allowed_origins=frozenset(settings.allowed_origins),
        trusted_proxies=tuple(settings.trusted_proxies),
        limits=WebLimits(requests_per_minute=settings.requests_per_minute),
        channels=channel_supervisor,
        workspaces=services.environment_resolver.workspaces,
        quotas=load_quotas(settings.sandbox),
        storage_quota=services.file_services.quota,
        on_channel_changed=channel_supervisor.wake,
        health=lambda: _health(backing, channel_supervisor),
        metrics=backing.metrics.render,
        observe_request=backing.metrics.count_request,
    )


async def _health(backing: BackingServices, channel_supervisor: ChannelSupervisor) -> Health:
    return assess(
        backing.settings.roles,
        database=await _database_state(backing),
        is_broker_up=backing.nats.is_connected,
        starting=channel_supervisor.starting(),
        not_receiving=channel_supervisor.not_receiving(),
        channel_errors=channel_supervisor.errors(),
        fill_ratio=backing.stream.fill,
    )


async def _database_state(backing: BackingServices) -> str:
    try:
        async with backing.database.read() as connection:
            await accounts.get_account(connection, name="default")
    except DatabaseUnavailable as error:
        return str(error)
    return "ok"
