"""Routes that are imported by the first request that needs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from aiohttp.web_urldispatcher import UrlDispatcher

from gateway.web.http.deferred_routes import DeferredRoutes, all_resources


async def _reply(request: web.Request) -> web.Response:
    return web.Response(text=request.path)


def _fill(router: UrlDispatcher) -> None:
    router.add_route("GET", "/late/{name}", _reply)
    router.add_route("POST", "/late/{name}", _reply)


@asynccontextmanager
async def _serving(fill: Callable[[UrlDispatcher], None]) -> AsyncIterator[tuple[web.Application, str]]:
    application = web.Application()
    application.router.add_route("GET", "/early", _reply)
    application.router.register_resource(DeferredRoutes(fill))
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield application, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_the_first_request_that_needs_them_imports_them_once() -> None:
    """A route of the start imports nothing; requests that arrive during the import wait for it."""
    begun, may_end, filled = threading.Event(), threading.Event(), list[str]()

    def fill(router: UrlDispatcher) -> None:
        filled.append(threading.current_thread().name)
        begun.set()
        may_end.wait(30)
        _fill(router)

    async with _serving(fill) as (application, url), aiohttp.ClientSession(url) as session:
        assert (await session.get("/early")).status == 200
        assert filled == []
        assert len(list(all_resources(application))) == 1
        waiting = [asyncio.create_task(session.get(f"/late/{number}")) for number in range(3)]
        await asyncio.to_thread(begun.wait, 30)
        assert (await session.get("/early")).status == 200  # the import does not block the event loop
        may_end.set()
        assert [await (await one).text() for one in waiting] == ["/late/0", "/late/1", "/late/2"]
        assert len(filled) == 1
        assert filled[0] != threading.current_thread().name
        assert [one.canonical for one in all_resources(application)] == ["/early", "/late/{name}"]
        assert len(application.router.routes()) == 3


async def test_a_path_or_method_without_a_route_is_refused() -> None:
    """The refusals are those of routes that were there from the start."""
    async with _serving(_fill) as (_, url), aiohttp.ClientSession(url) as session:
        assert (await session.get("/nowhere")).status == 404
        refused = await session.delete("/late/x")
        assert refused.status == 405
        assert refused.headers["Allow"] == "GET,POST"


async def test_a_failed_import_is_tried_again_by_the_next_request() -> None:
    """One request fails, and no half of the routes is kept."""
    failures = [ImportError("the disk is away")]

    def fill(router: UrlDispatcher) -> None:
        _fill(router)
        if failures:
            raise failures.pop()

    async with _serving(fill) as (_, url), aiohttp.ClientSession(url) as session:
        assert (await session.get("/late/x")).status == 500
        assert (await session.get("/late/x")).status == 200
