"""The webhook sink: one signed POST, judged by the status line of its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

import aiohttp

from delivery.database.clock import utc_now
from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.deliveries.retry_schedule import parse_retry_after
from delivery.events.event import rfc3339
from delivery.webhooks.egress import Egress, EgressRefused, EgressResponse
from delivery.webhooks.signing import BadSecret, sign

_GONE = 410
_BUSY = frozenset({429, 503})
_EXCERPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTarget:
    """Where a webhook goes. `secrets` are the live ones, newest first; `trusted`: the operator's own URL."""

    url: str
    secrets: tuple[str, ...] = field(repr=False)
    trusted: bool = False
    disabled: bool = False


FindTarget = Callable[[str], Awaitable[WebhookTarget | None]]
"""Find an endpoint's receiver by the endpoint's id; None when there is none any more."""


def _now() -> datetime:
    return utc_now()


async def _no_extra_headers(_delivery: Delivery) -> Mapping[str, str]:
    return {}


class WebhookSink(Sink):
    """Posts events to endpoints. Repeating is always safe: every attempt has the event's id as webhook-id."""

    def __init__(
        self,
        *,
        egress: Egress,
        find_target: FindTarget,
        source: str = "dovecote",
        now: Callable[[], datetime] = _now,
        extra_headers: Callable[[Delivery], Awaitable[Mapping[str, str]]] = _no_extra_headers,
    ) -> None:
        self._egress = egress
        self._find_target = find_target
        self._source = source.rstrip("/")
        self._now = now
        self._extra_headers = extra_headers

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once."""
        try:
            receiver = await self._find_target(delivery.target)
        except DatabaseUnavailable as error:
            return Outcome(kind=OutcomeKind.RETRY, detail=str(error))
        if receiver is None:
            return Outcome(
                kind=OutcomeKind.GIVE_UP, detail="the endpoint no longer exists", address_dead=True
            )
        if receiver.disabled:
            return Outcome(kind=OutcomeKind.GIVE_UP, detail="the endpoint is disabled", disable_endpoint=True)
        return await self._post(delivery, receiver)

    async def _post(self, delivery: Delivery, target: WebhookTarget) -> Outcome:
        try:
            answer = await self._egress.post(
                target.url,
                headers=self._headers(delivery, target) | dict(await self._extra_headers(delivery)),
                body=delivery.body,
                trusted=target.trusted,
            )
        except EgressRefused as error:
            return Outcome(kind=OutcomeKind.GIVE_UP, detail=f"refused: {error.why}")
        except BadSecret:
            return Outcome(kind=OutcomeKind.OPERATOR, detail="the endpoint's secret cannot be used")
        except TimeoutError:
            return Outcome(kind=OutcomeKind.RETRY, detail="no answer in time")
        except (aiohttp.ClientError, ValueError, OSError) as error:
            return Outcome(kind=OutcomeKind.RETRY, detail=_describe(error))
        return outcome_for_response(answer, now=self._now())

    def _headers(self, delivery: Delivery, target: WebhookTarget) -> dict[str, str]:
        place = f"/conversations/{quote(delivery.conversation, safe='')}" if delivery.conversation else ""
        signed = sign(target.secrets, message_id=delivery.event_id, moment=self._now(), body=delivery.body)
        return signed | {
            "content-type": "application/json",
            "ce-specversion": "1.0",
            "ce-id": delivery.event_id,
            "ce-type": delivery.event_type,
            "ce-source": self._source + place,
            "ce-time": rfc3339(delivery.event_time),
            "dovecote-delivery": delivery.id,
        }


def outcome_for_response(response: EgressResponse, *, now: datetime) -> Outcome:
    """Return what an answer means: 2xx taken, 410 never again, all else (redirects too) later."""
    status, excerpt = response.status, response.body[:_EXCERPT].decode(errors="replace")
    if 200 <= status < 300:  # noqa: PLR2004 - the class of success
        return Outcome(kind=OutcomeKind.DELIVERED, status=status, excerpt=excerpt)
    if status == _GONE:
        return Outcome(
            kind=OutcomeKind.GIVE_UP,
            detail="the receiver is gone for good (410)",
            disable_endpoint=True,
            status=status,
            excerpt=excerpt,
        )
    asked = parse_retry_after(response.retry_after, now=now) if status in _BUSY else None
    moved = " (redirects are not followed)" if 300 <= status < 400 else ""  # noqa: PLR2004 - likewise
    return Outcome(
        kind=OutcomeKind.RETRY,
        detail=f"the receiver answered {status}{moved}",
        retry_after=asked,
        pause_destination=asked is not None,
        status=status,
        excerpt=excerpt,
    )


def _describe(error: Exception) -> str:
    """Name the failure without the URL, which may hold a token."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the receiver's certificate is not valid"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the receiver's name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {error.os_error.strerror or type(error.os_error).__name__}"
    return f"the exchange broke off ({type(error).__name__})"
