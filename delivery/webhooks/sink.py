"""The webhook sink: one signed POST, whose response status decides about the outcome."""

from __future__ import annotations

import ssl
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
from delivery.webhooks.egress import Egress, EgressResponse
from delivery.webhooks.endpoints import DELETED
from delivery.webhooks.signing import BadSecret, sign
from egress.policy import EgressRefused

_GONE = 410
_BUSY = frozenset({429, 503})
_EXCERPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTarget:
    """A webhook's URL and valid secrets, newest first; `trusted`: the operator has configured the URL."""

    url: str
    secrets: tuple[str, ...] = field(repr=False)
    trusted: bool = False
    disabled: bool = False


FindTarget = Callable[[str], Awaitable[WebhookTarget | None]]
"""Return the target of an endpoint by the endpoint's id; None when the endpoint was deleted."""


def _now() -> datetime:
    return utc_now()


async def _no_extra_headers(_delivery: Delivery) -> Mapping[str, str]:
    return {}


class WebhookSink(Sink):
    """Posts events to endpoints; every attempt has the event's id as webhook-id, so a repetition is safe."""

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
        """Attempt once to post the event, and return the outcome."""
        try:
            target = await self._find_target(delivery.target)
        except DatabaseUnavailable as error:
            return Outcome(kind=OutcomeKind.RETRY, detail=str(error))
        if target is None:
            return Outcome(kind=OutcomeKind.GIVE_UP, detail=DELETED, disable_endpoint=True)
        if target.disabled:
            return Outcome(kind=OutcomeKind.GIVE_UP, detail="the endpoint is disabled", disable_endpoint=True)
        return await self._post(delivery, target)

    async def _post(self, delivery: Delivery, target: WebhookTarget) -> Outcome:
        try:
            response = await self._egress.post(
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
            return Outcome(kind=OutcomeKind.RETRY, detail="the receiver did not answer in time")
        except (aiohttp.ClientError, ValueError, OSError) as error:
            return Outcome(kind=OutcomeKind.RETRY, detail=_describe(error))
        return outcome_for_response(response, now=self._now())

    def _headers(self, delivery: Delivery, target: WebhookTarget) -> dict[str, str]:
        path = f"/conversations/{quote(delivery.conversation, safe='')}" if delivery.conversation else ""
        signed = sign(target.secrets, message_id=delivery.event_id, moment=self._now(), body=delivery.body)
        return signed | {
            "content-type": "application/json",
            "ce-specversion": "1.0",
            "ce-id": delivery.event_id,
            "ce-type": delivery.event_type,
            "ce-source": self._source + path,
            "ce-time": rfc3339(delivery.event_time),
            "dovecote-delivery": delivery.id,
        }


def outcome_for_response(response: EgressResponse, *, now: datetime) -> Outcome:
    """Return the outcome of a response: 2xx is delivered, 410 disables the endpoint, all else is retried."""
    status, excerpt = response.status, response.body[:_EXCERPT].decode(errors="replace")
    if 200 <= status < 300:  # noqa: PLR2004 - the class of success
        return Outcome(kind=OutcomeKind.DELIVERED, status=status, excerpt=excerpt)
    if status == _GONE:
        return Outcome(
            kind=OutcomeKind.GIVE_UP,
            detail="the receiver is permanently gone (410)",
            disable_endpoint=True,
            status=status,
            excerpt=excerpt,
        )
    # 0, or a date that is over, asks for no pause: the circuit breaker decides about one.
    retry_after = (parse_retry_after(response.retry_after, now=now) or None) if status in _BUSY else None
    note = " (redirects are not followed)" if 300 <= status < 400 else ""  # noqa: PLR2004 - likewise
    return Outcome(
        kind=OutcomeKind.RETRY,
        detail=f"the receiver answered {status}{note}",
        retry_after=retry_after,
        pause_destination=retry_after is not None,
        status=status,
        excerpt=excerpt,
    )


def _describe(error: Exception) -> str:
    """Describe the failure without the URL, which may contain a token."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
        reason = cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else ""
        return f"the receiver's TLS certificate is not valid{f': {reason}' if reason else ''}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the receiver's name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {error.os_error.strerror or type(error.os_error).__name__}"
    return f"the connection failed during the request ({type(error).__name__})"
