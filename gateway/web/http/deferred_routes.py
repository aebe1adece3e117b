"""Routes whose modules are imported by the first request that needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NoReturn

from aiohttp import web
from aiohttp.web_urldispatcher import (
    AbstractResource,
    AbstractRoute,
    UrlDispatcher,
    UrlMappingMatchInfo,
)

FillRouter = Callable[[UrlDispatcher], None]
"""Imports the modules of routes and adds the routes to a router; it runs in a thread."""


class DeferredRoutes(AbstractResource):
    """The routes behind all paths that no other resource of an application serves.

    Requests that arrive while the routes are imported wait for them. After a failed import the next request
    tries again.
    """

    def __init__(self, fill: FillRouter) -> None:
        super().__init__()
        self._fill = fill
        self._router: UrlDispatcher | None = None
        self._loading = asyncio.Lock()

    async def resolve(self, request: web.Request) -> tuple[UrlMappingMatchInfo | None, set[str]]:
        """Return the route of a request, or the methods that its path has."""
        router = await self._load() if self._router is None else self._router  # one without names is false
        found = await router.resolve(request)
        refusal = found.http_exception
        if refusal is None:
            return found, set()
        return None, refusal.allowed_methods if isinstance(refusal, web.HTTPMethodNotAllowed) else set()

    async def _load(self) -> UrlDispatcher:
        async with self._loading:
            if self._router is None:
                router = UrlDispatcher()
                await asyncio.to_thread(self._fill, router)
                self._router = router
            return self._router

    def resources(self) -> Iterator[AbstractResource]:
        """Yield the resources that have been imported."""
        if self._router is not None:
            yield from self._router.resources()

    @property
    def canonical(self) -> str:
        """The path under which the application's router looks for these routes."""
        return "/"

    def __iter__(self) -> Iterator[AbstractRoute]:
        for resource in self.resources():
            yield from resource

    def __len__(self) -> int:
        return sum(len(resource) for resource in self.resources())

    def get_info(self) -> NoReturn:
        """Refuse: no single resource is described by these routes."""
        raise NotImplementedError

    def url_for(self, **_parts: str) -> NoReturn:
        """Refuse: these routes have no common URL."""
        raise NotImplementedError

    def add_prefix(self, _prefix: str) -> NoReturn:
        """Refuse: the application of these routes is never mounted in another one."""
        raise NotImplementedError

    def raw_match(self, _path: str) -> bool:
        """Return that no added path is one of these routes."""
        return False


def all_resources(application: web.Application) -> Iterator[AbstractResource]:
    """Yield an application's resources, with those that were imported later."""
    for resource in application.router.resources():
        if isinstance(resource, DeferredRoutes):
            yield from resource.resources()
        else:
            yield resource
