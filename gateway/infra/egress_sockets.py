"""The egress sockets: the proxy of each sandbox with a restricted network, within the sandbox's budget.

Connections are accepted per sandbox and served by account: an account whose sandboxes hold many connections
waits, the others do not. Names are looked up by threads that accounts share fairly.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from aiohttp.abc import AbstractResolver

from delivery.background import log_errors
from delivery.fair_gate import FairGate, working_for
from egress.addresses import IpNetwork
from egress.proxy.connection import EgressProxy
from egress.proxy.request_head import refusal_response
from egress.proxy.rules import EgressRules
from egress.proxy.signing import NoCredentials, RequestSigner
from egress.proxy.tunnel import EgressBudget
from egress.sessions import SocketFactory
from gateway.infra.callback_sockets import listen_on
from sandbox.model import Network, SandboxSpec
from sandbox.port import CA_BUNDLE, EGRESS_SOCKET, EgressProxies

if TYPE_CHECKING:
    from egress.proxy.certificate_authority import CertificateAuthority

log = structlog.get_logger(__name__)

PLACE_SECONDS = 30.0
"""Seconds that a connection waits for a place among those of all accounts."""
_ERROR_PAUSE_SECONDS = 5.0

SignerFactory = Callable[[SandboxSpec], RequestSigner]
"""Returns the credentials that the sandbox of a spec may use."""


def no_credentials(_spec: SandboxSpec) -> RequestSigner:
    """Return the credentials of a sandbox that has none."""
    return NoCredentials()


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressTrust:
    """The certificates that sandboxes trust. Without them no request is signed with a credential."""

    authority: CertificateAuthority | None = None
    bundle: Path | None = None
    """The file of the certificates; it is linked into the directories of sandboxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressOptions:
    """What all proxies share."""

    resolver: AbstractResolver
    places: FairGate
    """The connections of all accounts that are served at once."""
    private: tuple[IpNetwork, ...] = ()
    """Private networks that the operator lets records list."""
    open_trust: Callable[[], EgressTrust] = EgressTrust
    """Opens the certificates for the first sandbox with a restricted network."""
    signer: SignerFactory = no_credentials
    budget: EgressBudget = field(default_factory=EgressBudget)
    make_socket: SocketFactory = socket.socket
    tls: ssl.SSLContext | bool = True
    """What verifies the certificates of hosts with a credential."""


class _SandboxProxy:
    """The socket of one sandbox, its present rules, and its open connections."""

    def __init__(self, directory: Path, options: EgressOptions) -> None:
        self.directory = directory
        self._options = options
        self._places = asyncio.Semaphore(options.budget.connections)
        self._connections: dict[asyncio.Task[None], EgressProxy] = {}
        """The proxy that serves each connection; a new one has the present rules."""
        self._listener: socket.socket | None = None
        self._bound: tuple[int, int] | None = None
        self._proxies: list[EgressProxy] = []
        """The present proxy, behind those of earlier rules."""
        self._account = ""
        self.task: asyncio.Task[None] | None = None

    def configure(self, spec: SandboxSpec, rules: EgressRules, trust: EgressTrust) -> None:
        """Serve by these rules from the next connection on; connections that they do not allow are closed."""
        self._account = spec.account
        signer = self._options.signer(spec)
        is_wider = bool(self._proxies) and rules.covers(self._proxies[-1].rules)
        if not is_wider:
            for connection, earlier in self._connections.items():
                if not earlier.may_stay_open(connection, rules):
                    connection.cancel()
        for earlier in self._proxies:
            earlier.rules, earlier.signer = rules, signer
        if is_wider:
            return
        proxy = EgressProxy(
            rules=rules,
            resolver=self._options.resolver,
            signer=signer,
            authority=trust.authority,
            budget=self._options.budget,
            make_socket=self._options.make_socket,
            tls=self._options.tls,
        )
        self._proxies.append(proxy)

    def listen(self) -> None:
        """Listen, again if another process has taken the socket's place, and accept in a task."""
        path = self.directory / EGRESS_SOCKET
        if self._listener is not None and self._bound == _identity(path):
            return
        if self.task is not None:
            self.task.cancel()
        self._listener = listener = listen_on(path, self._options.budget.backlog)
        self._bound = _identity(path)
        with working_for(self._account):
            self.task = asyncio.create_task(self._accept_forever(listener))
        self.task.add_done_callback(lambda _task: listener.close())  # not earlier: the loop still watches it

    async def close(self) -> None:
        """Stop listening and end every connection."""
        tasks = [one for one in (self.task, *self._connections) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for proxy in self._proxies:
            await proxy.close()

    async def _accept_forever(self, listener: socket.socket) -> None:
        while True:
            with log_errors("egress_socket.accept", socket=self.directory.name):
                await self._accept(listener)
                continue
            await asyncio.sleep(_ERROR_PAUSE_SECONDS)

    async def _accept(self, listener: socket.socket) -> None:
        await self._places.acquire()
        try:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        except BaseException:
            self._places.release()
            raise
        proxy = self._proxies[-1]
        task = asyncio.create_task(self._serve(connection, proxy))
        self._connections[task] = proxy
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        self._places.release()

    async def _serve(self, connection: socket.socket, proxy: EgressProxy) -> None:
        with log_errors("egress_socket.serve", socket=self.directory.name):
            try:
                leave = await self._options.places.enter(self._account, timeout=PLACE_SECONDS)
            except TimeoutError:
                sentence = "The gateway has too many connections of this account: close some, and try again."
                with connection, suppress(OSError):
                    connection.send(refusal_response(503, "Service Unavailable", sentence))
                return
            except BaseException:
                connection.close()
                raise
            try:
                await proxy.serve(connection)
            finally:
                leave()


class EgressSockets(EgressProxies):
    """The egress sockets of this process: those of the sandboxes that its providers have opened.

    A job that outlives the gateway reaches the network again when the gateway has found it again.
    """

    def __init__(self, options: EgressOptions, *, limit: int | None = None) -> None:
        self._options = options
        self._limit = limit or resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8
        self._trust: EgressTrust | None = None
        self._proxies: dict[str, _SandboxProxy] = {}
        self._closing = set[asyncio.Task[None]]()

    def open(self, directory: Path, spec: SandboxSpec, *, proxied: bool = False) -> None:
        """Listen for a sandbox with a restricted network, by the lists of its spec. Idempotent."""
        is_open = spec.network is Network.ALLOW_ALL and proxied
        if spec.network is not Network.RESTRICTED and not is_open:
            self.close(directory)
            return
        rules = EgressRules(anywhere=True) if is_open else self._parse(directory, spec)
        found = self._proxies.get(directory.name)
        if found is None:
            if len(self._proxies) >= self._limit:
                log.warning("egress_socket.limit_reached", limit=self._limit, remedy="raise LimitNOFILE")
                return
            found = self._proxies[directory.name] = _SandboxProxy(directory, self._options)
        trust = self._trust = self._trust or self._options.open_trust()
        found.configure(spec, rules, trust)
        _link_bundle(directory, trust.bundle)
        found.listen()

    def _parse(self, directory: Path, spec: SandboxSpec) -> EgressRules:
        try:
            return EgressRules.parse(spec.allow_domains, spec.allow_cidrs, private=self._options.private)
        except ValueError as error:  # a record from before the lists were checked
            log.warning("egress_socket.invalid_rules", socket=directory.name, error=str(error))
            return EgressRules()

    def close(self, directory: Path) -> None:
        """Stop listening for a sandbox. Idempotent."""
        found = self._proxies.pop(directory.name, None)
        if found is not None:
            (found.directory / EGRESS_SOCKET).unlink(missing_ok=True)
            task = asyncio.create_task(found.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[EgressSockets]:
        """Close every socket and connection at the end."""
        try:
            yield self
        finally:
            for name in list(self._proxies):
                self.close(Path(name))
            await asyncio.gather(*self._closing, return_exceptions=True)
            await self._options.resolver.close()


def _link_bundle(directory: Path, bundle: Path | None) -> None:
    """Put the certificates into a sandbox's directory, without a copy of them."""
    link = directory / CA_BUNDLE
    if bundle is None or _identity(bundle) == _identity(link):
        return
    link.unlink(missing_ok=True)
    os.link(bundle, link)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
