"""Everything the web layer stands on; the composition root fills it in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol

from channels.port import Answer, Finding, Incoming
from delivery.database.engine import Database
from gateway.accounts.api_keys import Gatekeeper
from gateway.accounts.vault import Secret
from gateway.environments.quotas import Quotas
from gateway.environments.workspaces import Workspaces
from gateway.infra.replica_presence import Presence
from gateway.observability.readiness import Health
from gateway.records.records import Book
from gateway.services import Core
from gateway.store.accounts.records import Record
from gateway.web.http.auth_lockout import Limiter
from gateway.web.http.request_metrics import Answered, unnoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of the public face; times in seconds."""

    auth_failures: int = 30
    auth_window: float = 60.0
    anonymous_connections: int = 64
    connections_per_key: int = 1000
    header_deadline: float = 10.0
    body_deadline: float = 10.0
    body_bytes: int = 1024 * 1024
    file_bytes: int = 64 * 1024 * 1024
    idempotency_wait: float = 30.0
    requests_per_minute: int = 60_000


class Inboxes(Protocol):
    """The channels that are open in this process (or can be opened to receive a post)."""

    async def receive(self, channel: str, request: Incoming) -> Answer | None:
        """Give a posted request to a channel's inbox; None when there is no such channel."""

    async def probe(self, record: Record) -> tuple[Finding, ...]:
        """Ask a channel's platform whether its settings are right; raises ChannelError."""


async def _nobody(_account: str, _record: str) -> None:
    """Tell nobody."""


async def _always() -> Health:
    return Health(ready=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What requests are answered from. `core` holds the gateway's own doors (turns, jobs, …).

    `alone_since`: whatever was begun before this moment and is not done was begun by a process that died.
    `presence` tells the same of other replicas.
    """

    database: Database
    book: Book
    gatekeeper: Gatekeeper
    core: Core | None = None
    alone_since: datetime | None = None
    presence: Presence | None = None
    admin_key: Secret | None = None
    public_url: str | None = None
    origins: frozenset[str] = frozenset()
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    bounds: Bounds = Bounds()
    inboxes: Inboxes | None = None
    workspaces: Workspaces | None = None
    quotas: Quotas = field(default_factory=Quotas)
    channels_changed: Callable[[str, str], Awaitable[None]] = _nobody
    account_removed: Callable[[str, str], Awaitable[None]] = _nobody
    health: Callable[[], Awaitable[Health]] = _always
    metrics: Callable[[], bytes] = bytes
    answered: Answered = unnoted
    guesses: Limiter = field(default_factory=lambda: Limiter(failures=10, window=60.0))
    """Wrong pairing codes, counted by channel."""
