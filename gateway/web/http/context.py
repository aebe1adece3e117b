"""The services that requests use; the composition root provides them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol
from weakref import WeakValueDictionary

from aiohttp import web

from channels.port import ChannelInstallations, CheckResult, WebhookRequest, WebhookResponse
from delivery.database.engine import Database
from gateway.accounts.api_keys import ApiKeyAuthenticator
from gateway.accounts.entry_codes import EntryCodes
from gateway.accounts.stream_tickets import StreamTickets
from gateway.accounts.vault import Secret
from gateway.environments.quotas import WorkspaceQuotas
from gateway.environments.workspaces import Workspaces
from gateway.files.storage.storage_quota import StorageQuota
from gateway.infra.replica_presence import ReplicaPresence
from gateway.observability.readiness import Health
from gateway.records.records import Records
from gateway.services import Services
from gateway.sign_in.oidc_sign_in import OidcSignIn
from gateway.store.accounts.records import Record
from gateway.web.http.auth_lockout import FailureLockout
from gateway.web.http.request_instrumentation import RequestObserver, ignore_request


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Limits of the HTTP server; times in seconds. An account has `records` of each kind, and `webhooks`.

    `proxy_keep_alive` is how long idle connections of trusted proxies stay open. It is longer than the idle
    times of proxies (Caddy two minutes, Traefik 90 seconds, nginx and AWS load balancers a minute), so that
    the proxy closes them: else it may send a request at the moment in which the gateway closes.
    """

    auth_failures: int = 30
    auth_window: float = 60.0
    anonymous_connections: int = 64
    connections_per_key: int = 1000
    header_deadline: float = 10.0
    proxy_keep_alive: float = 150.0
    body_deadline: float = 10.0
    body_bytes: int = 1024 * 1024
    file_bytes: int = 64 * 1024 * 1024
    idempotency_wait: float = 30.0
    requests_per_minute: int = 60_000
    records: int = 1000
    webhooks: int = 100


class WebhookChannels(Protocol):
    """The channels of this process that receive webhooks."""

    async def receive(self, channel: str, request: WebhookRequest) -> WebhookResponse | None:
        """Pass a webhook to a channel's receiver; None when there is no such channel."""

    def installations(self, channel: str) -> ChannelInstallations | None:
        """Return the workspaces that installed a channel's app; None if it cannot be installed."""

    def open_installations(self, record: Record) -> AbstractAsyncContextManager[ChannelInstallations | None]:
        """Yield what a channel's `installations` are, whether it is connected or not.

        Raises ChannelError, UnreadableChannel.
        """

    def list_installable(self, kind: str) -> list[str]:
        """Return the open channels of a platform whose apps people can install."""

    async def probe(self, record: Record) -> tuple[CheckResult, ...]:
        """Check a channel's settings with its platform; raises ChannelError."""

    def status(self, channel: str) -> tuple[str, str]:
        """Return a channel's state in this process, and why it does not receive or an empty text."""


async def _ignore(_account: str, _record: str) -> None:
    """Do nothing."""


async def _always_ready() -> Health:
    return Health(ready=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebContext:
    """The services and settings that requests use; `services` are those of turns and jobs.

    `sole_process_since`: unfinished work that was begun before this time belongs to a process that died.
    `presence` gives the same for other replicas.
    """

    database: Database
    records: Records
    api_key_authenticator: ApiKeyAuthenticator
    services: Services | None = None
    sole_process_since: datetime | None = None
    presence: ReplicaPresence | None = None
    admin_key: Secret | None = None
    public_url: str | None = None
    entry_codes: EntryCodes | None = None
    sign_in: OidcSignIn | None = None
    allowed_origins: frozenset[str] = frozenset()
    stream_tickets: StreamTickets = field(
        default_factory=lambda: StreamTickets(keys=(secrets.token_bytes(32),))
    )
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    limits: WebLimits = WebLimits()
    channels: WebhookChannels | None = None
    workspaces: Workspaces | None = None
    quotas: WorkspaceQuotas = field(default_factory=WorkspaceQuotas)
    storage_quota: StorageQuota | None = None
    on_channel_changed: Callable[[str, str], Awaitable[None]] = _ignore
    on_account_deleted: Callable[[str, str], Awaitable[None]] = _ignore
    health: Callable[[], Awaitable[Health]] = _always_ready
    metrics: Callable[[], bytes] = bytes
    observe_request: RequestObserver = ignore_request
    pairing_lockout: FailureLockout = field(default_factory=lambda: FailureLockout(failures=10, window=60.0))
    """Wrong pairing codes, counted by channel."""
    open_requests: WeakValueDictionary[str, web.Request] = field(default_factory=WeakValueDictionary)
    """The last request of each digest from clients that repeat requests without a count."""
