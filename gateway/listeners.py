"""The doors to the outside: the web server and the callback socket."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from aiohttp import web

from delivery.database.engine import Unavailable
from gateway.accounts.api_keys import Gatekeeper
from gateway.accounts.vault import Secret
from gateway.environments.quotas import quotas_of
from gateway.infra.backing_services import Ground
from gateway.infra.preflight import CannotListen
from gateway.ingress.channel_supervisor import Switchboard
from gateway.observability.readiness import Health, assess
from gateway.records.records import Book
from gateway.services import Core
from gateway.store.accounts import accounts
from gateway.web.http.connection_limit import Runner
from gateway.web.http.context import Bounds, Surface
from gateway.web.server import build, build_callbacks

CALLBACK_SOCKET = "callback.sock"

LONGEST_SOCKET_PATH = 107


@asynccontextmanager
async def opened(ground: Ground, core: Core, book: Book, switchboard: Switchboard) -> AsyncIterator[str]:
    """Listen on the configured address and on the callback socket; yields the base URL."""
    surface = _surface(ground, core, book, switchboard)
    runner = Runner(build(surface), surface.bounds, access_log=None, shutdown_timeout=2.0)
    callbacks = web.AppRunner(build_callbacks(surface), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    await callbacks.setup()
    try:
        url = await _listen(ground, runner, callbacks)
        yield url
    finally:
        await runner.cleanup()
        await callbacks.cleanup()
        with suppress(FileNotFoundError):
            (ground.settings.data_dir / "url").unlink()


async def _listen(ground: Ground, runner: web.AppRunner, callbacks: web.AppRunner) -> str:
    settings = ground.settings
    socket = settings.data_dir / "callbacks" / CALLBACK_SOCKET
    socket.unlink(missing_ok=True)
    with _short(socket) as path:
        await web.UnixSite(callbacks, path).start()
    socket.chmod(0o666)  # its directory is 0700 outside; inside a sandbox this file is all there is
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as error:
        raise CannotListen(settings.host, settings.port, error) from error
    host, port = runner.addresses[0][:2]
    shown = "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104 - compared, not bound
    url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    (settings.data_dir / "url").write_text(url)
    return url


@contextmanager
def _short(socket: Path) -> Iterator[str]:
    """Return a path to bind a socket to: the kernel takes a hundred bytes, a directory may be deeper."""
    if len(bytes(socket)) <= LONGEST_SOCKET_PATH:
        yield str(socket)
        return
    directory = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{socket.name}"
    finally:
        os.close(directory)


def _surface(ground: Ground, core: Core, book: Book, switchboard: Switchboard) -> Surface:
    settings = ground.settings
    return Surface(
        database=ground.database,
        book=book,
        gatekeeper=Gatekeeper(ground.database),
        core=core,
        alone_since=ground.alone_since,
        presence=ground.presence,
        admin_key=Secret(settings.admin_key.get_secret_value()) if settings.admin_key else None,
        public_url=settings.public_url,
        origins=frozenset(settings.origins),
        trusted_proxies=tuple(settings.trusted_proxies),
        bounds=Bounds(requests_per_minute=settings.requests_per_minute),
        inboxes=switchboard,
        workspaces=core.workbench.workspaces,
        quotas=quotas_of(settings.sandbox),
        channels_changed=switchboard.changed,
        health=lambda: _health(ground, switchboard),
        metrics=ground.metrics.render,
        answered=ground.metrics.answered,
    )


async def _health(ground: Ground, switchboard: Switchboard) -> Health:
    return assess(
        ground.settings.roles,
        database=await _database_state(ground),
        broker=ground.link.is_up,
        waiting=switchboard.waiting(),
        deaf=switchboard.deaf(),
        troubles=switchboard.troubles(),
        fill=ground.stream.fill,
    )


async def _database_state(ground: Ground) -> str:
    try:
        async with ground.database.read() as connection:
            await accounts.find_account(connection, name="default")
    except Unavailable as error:
        return str(error)
    return "ok"
