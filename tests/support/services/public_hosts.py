"""Servers on loopback that represent hosts of the internet, for tests of the egress proxy.

A resolver maps names to public addresses, and sockets that connect to such an address reach the server. What
is connected to besides is written down, so that a test sees every address that the proxy has tried.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from delivery.fair_gate import FairGate
from delivery.fair_scheduler import PoolSize
from egress.proxy.certificate_authority import CertificateAuthority
from egress.proxy.tunnel import EgressBudget
from egress.sessions import Resolver
from gateway.infra.egress_sockets import (
    EgressOptions,
    EgressSockets,
    EgressTrust,
    SignerFactory,
    no_credentials,
)

PUBLIC, OTHER = "93.184.215.14", "151.101.1.69"
"""Addresses of the internet that servers on loopback represent."""


@dataclass(kw_only=True)
class PublicHosts:
    """The names, their addresses, and the servers behind the addresses."""

    directory: Path
    names: dict[str, list[list[str]]] = field(default_factory=dict)
    """The addresses of each name, for each look-up in turn; the last ones stay."""
    ports: dict[tuple[str, int], int] = field(default_factory=dict)
    looked_up: list[str] = field(default_factory=list)
    connected: list[tuple[str, int]] = field(default_factory=list)
    authority: CertificateAuthority = field(default_factory=CertificateAuthority.create)
    """Signs the certificates of the servers, as a public authority would."""
    gateway_authority: CertificateAuthority = field(default_factory=CertificateAuthority.create)

    def add(self, name: str, *addresses: str) -> None:
        """Give a name the address PUBLIC, or these addresses for one look-up each."""
        self.names[name] = [[one] for one in addresses or (PUBLIC,)]

    def look_up(self, host: str, port: int, family: int, kind: int) -> list[Any]:
        """Answer as socket.getaddrinfo does."""
        self.looked_up.append(host)
        answers = self.names.get(host)
        if not answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET, kind, 6, "", (address, port)) for address in found]

    def make_socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        """Return a socket that reaches the server on loopback that represents the address."""
        hosts = self

        class RoutedSocket(socket.socket):
            def connect(self, address: Any) -> None:
                hosts.connected.append((address[0], address[1]))
                port = hosts.ports.get((address[0], address[1]))
                if port is None:
                    raise ConnectionRefusedError(f"nothing stands for {address}")
                super().connect(("127.0.0.1", port))

        return RoutedSocket(family, kind, protocol)

    def trust(self) -> ssl.SSLContext:
        """Return a context that trusts the servers."""
        return ssl.create_default_context(cadata=self.authority.certificate_pem())

    @property
    def bundle(self) -> Path:
        """Write the certificates that sandboxes trust: those of the servers' authority and the gateway's."""
        path = self.directory / "bundle.pem"
        if not path.exists():
            path.write_text(self.authority.certificate_pem() + self.gateway_authority.certificate_pem())
        return path

    @asynccontextmanager
    async def serve(
        self, handler: Any, *, address: str = PUBLIC, port: int = 80, tls_name: str = ""
    ) -> AsyncIterator[None]:
        """Answer requests to an address and port; with a name, by TLS with its certificate."""
        runner = web.ServerRunner(web.Server(handler))
        await runner.setup()
        context = self.server_context(tls_name) if tls_name else None
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            await web.SockSite(runner, listener, ssl_context=context).start()
            self.ports[address, port] = listener.getsockname()[1]
            try:
                yield
            finally:
                del self.ports[address, port]
                await runner.cleanup()

    def server_context(self, name: str) -> ssl.SSLContext:
        """Return the context of a server; it accepts every server name, so that only the proxy refuses."""
        context = self.authority.context_for(name)
        context.sni_callback = None
        return context

    @asynccontextmanager
    async def sockets(
        self,
        *,
        signer: SignerFactory = no_credentials,
        budget: EgressBudget | None = None,
        places: FairGate | None = None,
        **options: Any,
    ) -> AsyncIterator[EgressSockets]:
        """Open the gateway's egress sockets on this internet."""
        found = EgressOptions(
            resolver=Resolver(executor=ThreadPoolExecutor(2), look_up=self.look_up),
            places=places or FairGate(PoolSize(places=64)),
            open_trust=lambda: EgressTrust(authority=self.gateway_authority, bundle=self.bundle),
            signer=signer,
            budget=budget or EgressBudget(),
            make_socket=self.make_socket,
            tls=self.trust(),
            **options,
        )
        async with EgressSockets(found).serving() as opened:
            yield opened
