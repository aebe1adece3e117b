"""The connections of the callback sockets: one request each, counted for the sandbox that they come from."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from gateway.infra.callback_sockets import CallbackSocket
from gateway.web.http.connection import HttpConnection


class _CallbackConnection(HttpConnection):
    """A connection of one sandbox. It is closed after its first response."""

    __slots__ = ("_callback_socket",)

    def __init__(self, callback_socket: CallbackSocket, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._callback_socket = callback_socket

    @property
    def peername(self) -> str:
        """Name the sandbox instead of an address, so that every limit by address is one by sandbox."""
        return f"sandbox {self._callback_socket.name}"

    def data_received(self, data: bytes) -> None:
        """Count the bytes for the sandbox."""
        self._callback_socket.count_bytes(len(data))
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let the sandbox open another connection."""
        self._callback_socket.release()
        super().connection_lost(exc)


async def _close_after_response(_request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()


class CallbackRunner(web.AppRunner):
    """Serves the callback application to connections that the callback sockets accept."""

    def __init__(self, application: web.Application, **options: Any) -> None:
        application.on_response_prepare.append(_close_after_response)
        super().__init__(application, **options)

    def connect(self, callback_socket: CallbackSocket) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        server = self.server
        assert server is not None, "the runner is set up before anything is accepted"
        loop = asyncio.get_running_loop()
        return _CallbackConnection(callback_socket, server, loop=loop, **server._kwargs)  # noqa: SLF001 - as aiohttp's server does
