"""Serve the connections of one sandbox: tunnels for TLS, plain HTTP, and requests that are signed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver

from egress.policy import EgressRefused
from egress.proxy.client_hello import NotClientHello
from egress.proxy.dialer import BUFFER_BYTES, HostUnreachable, connect
from egress.proxy.forwarding import ConnectionServer, Forwarder
from egress.proxy.request_head import (
    HEAD_END,
    MAX_HEAD_BYTES,
    InvalidRequest,
    RequestHead,
    Target,
    forbidden,
    parse_authority,
    parse_head,
    refusal_response,
)
from egress.proxy.rules import EgressRules, RulesGuard, is_address
from egress.proxy.signing import NoCredentials, RequestSigner, check_host
from egress.proxy.tunnel import (
    ByteAllowance,
    EgressBudget,
    ServerNameMismatch,
    copy_both_ways,
    read_client_hello,
    refuse_tls,
)
from egress.sessions import SocketFactory, open_session

if TYPE_CHECKING:
    from egress.proxy.certificate_authority import CertificateAuthority

log = structlog.get_logger(__name__)

HEAD_SECONDS = 30.0
_HTTPS_PORT, _HTTP_PORT = 443, 80
_READ_ALL = 1 << 20
"""More than a stream reader keeps, so that one read returns everything that was received."""
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@dataclass(kw_only=True)
class EgressProxy:
    """The proxy of one sandbox. `serve` is called for each connection; `close` ends what it keeps."""

    rules: EgressRules
    resolver: AbstractResolver
    signer: RequestSigner = field(default_factory=NoCredentials)
    authority: CertificateAuthority | None = None
    """Without one, no request is signed."""
    budget: EgressBudget = field(default_factory=EgressBudget)
    make_socket: SocketFactory = socket.socket
    tls: ssl.SSLContext | bool = True

    def __post_init__(self) -> None:
        """Count the bytes of all connections together."""
        self.allowance = ByteAllowance(self.budget)
        self._session: aiohttp.ClientSession | None = None
        self._tunnels: dict[asyncio.Task[Any] | None, tuple[Target, str]] = {}
        self._plain: dict[asyncio.Task[Any] | None, Sequence[Target]] = {}
        """The targets of the requests that are being answered, by the connections of plain HTTP."""

    def may_stay_open(self, connection: asyncio.Task[None], rules: EgressRules) -> bool:
        """Return whether a connection, which a task serves, reaches only what other rules allow too.

        Of a tunnel that is what it leads to, of a connection for plain HTTP the requests that are being
        answered: later ones are checked by the rules of that time. Others may be at any point.
        """
        try:
            if connection in self._tunnels:
                target, address = self._tunnels[connection]
                rules.check_host(target.host, target.port)
                rules.check_address(address, target.port, is_named=not is_address(target.host))
                return True
            if connection not in self._plain:
                return rules.covers(self.rules)
            targets = self._plain[connection]
            for target in targets:
                rules.check_host(target.host, target.port)
        except EgressRefused:
            return False
        # The address of a listed host may be one of a private network.
        return not targets or rules.covers_networks(self.rules)

    async def close(self) -> None:
        """Close the session of plain and signed requests."""
        if self._session is not None:
            await self._session.close()

    async def serve(self, connection: socket.socket) -> None:
        """Serve an accepted connection until its end, and close it."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=BUFFER_BYTES)
        try:
            async with asyncio.timeout(self.budget.connection_seconds):
                await self._serve(reader, writer)
        except (OSError, TimeoutError, ssl.SSLError, asyncio.IncompleteReadError) as error:
            log.debug("egress.connection_ended", error=str(error))
        finally:
            writer.close()  # not awaited: the streams do not see the end of what aiohttp has served

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await _read_head(reader)
            if not head.is_connect:
                await self._serve_plain(writer, head)
                return
            await self._open_tunnel(reader, writer, _tunnel_target(head))
        except InvalidRequest as error:
            await _answer(writer, refusal_response(400, "Bad Request", str(error)))
        except EgressRefused as error:
            log.info("egress.refused", reason=error.why)
            await _answer(writer, forbidden(error))
        except HostUnreachable as error:
            await _answer(writer, refusal_response(502, "Bad Gateway", f"{error}"))

    async def _serve_plain(self, writer: asyncio.StreamWriter, head: RequestHead) -> None:
        forwarder = self._forwarder()
        self._plain[asyncio.current_task()] = forwarder.plain_targets
        try:
            await self._serve_http(writer, forwarder.forward_plain, head.received)
        finally:
            del self._plain[asyncio.current_task()]

    async def _open_tunnel(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target
    ) -> None:
        if await self._is_signed(target):
            await self._serve_signed(writer, target)
            return
        is_named = not is_address(target.host)
        await check_host(self.rules, self.signer, target.host, target.port)
        if is_named and target.port == _HTTP_PORT:
            raise EgressRefused(
                f"A tunnel to port 80 of {target.host} is not possible: send plain HTTP, or use TLS."
            )
        outside, address = await connect(
            target, self.rules, resolver=self.resolver, make_socket=self.make_socket
        )
        self._tunnels[asyncio.current_task()] = (target, address)
        try:
            await _answer(writer, _ESTABLISHED)
            if is_named:
                outside[1].write(await read_client_hello(reader, target.host))
            await copy_both_ways((reader, writer), outside, budget=self.budget, allowance=self.allowance)
        except (ServerNameMismatch, NotClientHello) as error:
            log.info("egress.refused", host=target.host, reason=str(error))
            refuse_tls(writer)
        finally:
            del self._tunnels[asyncio.current_task()]
            outside[1].close()
            with suppress(OSError):
                await outside[1].wait_closed()

    async def _is_signed(self, target: Target) -> bool:
        """Return whether requests to the target are signed: its host has a credential for this sandbox."""
        is_possible = self.authority is not None and target.port == _HTTPS_PORT
        return is_possible and await self.signer.has_credential(target.host)

    async def _serve_signed(self, writer: asyncio.StreamWriter, target: Target) -> None:
        """Stand for the host: terminate TLS with a certificate of the gateway's authority."""
        assert self.authority is not None, "asked before"
        context = self.authority.context_for(target.host)
        await _answer(writer, _ESTABLISHED)
        forward = partial(self._forwarder().forward_signed, target=target)
        await self._serve_http(writer, forward, b"", tls=context)

    async def _serve_http(
        self,
        writer: asyncio.StreamWriter,
        handler: Any,
        received: bytes,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Give the connection to aiohttp's server, with what was received, until it is lost."""
        server = ConnectionServer(handler)
        protocol = server()
        transport: Any = writer.transport
        if tls is None:
            transport.set_protocol(protocol)
        else:
            loop = asyncio.get_running_loop()
            transport = await loop.start_tls(transport, protocol, tls, server_side=True)
            if transport is None:
                return
        protocol.connection_made(transport)
        if received:
            protocol.data_received(received)
        try:
            await server.ended.wait()
        finally:
            await server.shutdown(1.0)

    def _present_rules(self) -> EgressRules:
        """Return the rules, which change with the record."""
        return self.rules

    def _present_signer(self) -> RequestSigner:
        """Return the credentials, which change with the record."""
        return self.signer

    def _forwarder(self) -> Forwarder:
        if self._session is None:
            self._session = open_session(
                RulesGuard(get_rules=self._present_rules),
                resolver=self.resolver,
                timeout=aiohttp.ClientTimeout(
                    total=self.budget.connection_seconds, sock_read=self.budget.idle_seconds, sock_connect=30
                ),
                limit=self.budget.connections,
                force_close=True,
                auto_decompress=False,
                make_socket=self.make_socket,
            )
        return Forwarder(
            get_rules=self._present_rules,
            session=self._session,
            get_signer=self._present_signer,
            allowance=self.allowance,
            tls=self.tls,
        )


async def _read_head(reader: asyncio.StreamReader) -> RequestHead:
    received = bytearray()
    while True:
        chunk = await reader.read(_READ_ALL)
        if not chunk:
            raise InvalidRequest("The connection ended before the end of the request's head.")
        seen = max(0, len(received) - len(HEAD_END))
        received += chunk
        end = received.find(HEAD_END, seen)
        if (end if end >= 0 else len(received)) > MAX_HEAD_BYTES:
            raise InvalidRequest(f"The head of the request is longer than {MAX_HEAD_BYTES} bytes.")
        if end >= 0:
            return parse_head(bytes(received))


def _tunnel_target(head: RequestHead) -> Target:
    if head.behind:
        raise InvalidRequest("A client sends nothing before its tunnel is established.")
    return parse_authority(head.target)


async def _answer(writer: asyncio.StreamWriter, response: bytes) -> None:
    writer.write(response)
    await writer.drain()
