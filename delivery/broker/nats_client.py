"""nats-py as the connection uses it: a faster client, the inboxes of requests, and errors as our own."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from nats.protocol.parser import PERMISSIONS_ERR

from delivery.errors import AppendConflict, BrokerFull, BrokerRefused, BrokerUnreachable

_WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
TRANSIENT_CODES = frozenset({10008, 10158, 10164})
"""Error codes worth a retry: JetStream not yet available, or this or another append to the subject in flight.

A cluster has an append in flight for as long as its leader waits for the other servers.
"""

_NO_SPACE = frozenset({10002, 10023})
"""Error codes of a full server, and of an account at its storage limit."""

NEEDED_PAYLOAD = 512 * 1024
"""The smallest `max_payload` of a server in bytes: chunks of files are the largest messages."""

CREDENTIALS_REFUSED = "the NATS server refuses the credentials; check the URL and the token"
CONNECT_SECONDS = 2
NO_GREETING = f"no greeting within {CONNECT_SECONDS} s; check that it is a NATS server"

TICK_SECONDS = 0.1
"""Seconds between two ticks of the timer of all waits; a wait may take so much longer than asked for."""


class PayloadLimitTooLow(NatsError):
    """The server does not accept messages of `NEEDED_PAYLOAD` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the NATS server's max_payload is {limit} bytes, and the gateway needs {NEEDED_PAYLOAD}; "
            "raise max_payload in the server's configuration (its default is 1MB)"
        )


class NatsClient(Client):
    """nats-py with a faster header parser, and without queues before the socket and behind it.

    The original parser checks every character of every name, which is half the cost of a replay. The original
    client has a queue and a task for what is sent, and for the messages of each subscription; each takes
    steps of the event loop. If a later version no longer calls these methods, only the speed changes.
    """

    replies: Subscription | None = None
    """The subscription whose messages go to `on_reply` as they are read from the socket."""

    on_reply: Callable[[Msg], None]

    @property
    def is_clustered(self) -> bool:
        """Whether the server's INFO names a cluster."""
        return bool(self._server_info.get("cluster"))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if self.replies is None or sid != self.replies._id:  # noqa: SLF001 - the number of the subscription
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        parsed = await self._process_headers(headers)
        self.on_reply(self._build_message(sid, subject, reply, data, parsed))

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002 - as the original
        """Leave a server that would refuse some events: the client then tries the next one, without end."""
        limit = info.get("max_payload", NEEDED_PAYLOAD)
        if initial_connection and limit < NEEDED_PAYLOAD:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
            raise PayloadLimitTooLow(limit)
        await super()._process_info(info, initial_connection=initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect after an error with which the server ends the connection; the original closes for good.

        Credentials that are revoked or expire, and limits of connections, can be corrected at the server.
        """
        if PERMISSIONS_ERR in err_msg:
            await super()._process_err(err_msg)
            return
        error = NatsError(f"nats: {err_msg.strip()}")
        await self._error_cb(error)
        await self._process_op_err(error)

    async def _flush_pending(self, force_flush: bool = False) -> Any:  # noqa: FBT001, FBT002 - as the original
        """Write what is pending at once, unless the socket accepts nothing more now."""
        writer = getattr(self._transport, "_io_writer", None)
        if force_flush or not self.is_connected or not writer or writer.transport.get_write_buffer_size():
            return await super()._flush_pending(force_flush)
        pending, self._pending, self._pending_data_size = self._pending, [], 0
        writer.writelines(pending)
        return None

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        parts = [header.partition(":") for header in raw.decode("utf-8", "replace").split("\r\n")]
        return {name.strip(): value.strip() for name, colon, value in parts if colon}


class ReplyInbox:
    """The replies to one request; None stands for a lost connection."""

    __slots__ = ("messages", "subject", "ticks", "waiter")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.messages: deque[Msg | None] = deque()
        self.ticks = 0
        self.waiter: asyncio.Future[None] | None = None

    def put(self, message: Msg | None) -> None:
        """Add a reply, and resume who waits for it."""
        self.messages.append(message)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def tick(self) -> None:
        """Let time pass for who waits; the last tick ends the wait."""
        self.ticks -= 1
        if self.ticks < 0 and self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(TimeoutError())


class ReplyInboxes:
    """The inboxes of the requests under way, and one timer for all who wait: most replies come within 1 ms.

    The time of a wait is counted in ticks of that timer. When the event loop is late, a timer fires before
    the reply that has arrived is read. Several that are due fire as one tick, so that is no timeout.
    """

    def __init__(self) -> None:
        self.prefix = ""
        self._opened = 0
        self._inboxes: dict[str, ReplyInbox] = {}
        self._is_ticking = False

    def open(self) -> ReplyInbox:
        """Open the inbox of a request, until it is closed."""
        self._opened += 1
        inbox = ReplyInbox(f"{self.prefix}.{self._opened}")
        self._inboxes[inbox.subject] = inbox
        return inbox

    def close(self, inbox: ReplyInbox) -> None:
        """Drop the replies that still come."""
        del self._inboxes[inbox.subject]

    def deliver(self, message: Msg) -> None:
        """Put a reply into its inbox; it is dropped if nothing waits for it any more."""
        inbox = self._inboxes.get(message.subject)
        if inbox is not None:
            inbox.put(message)

    def report_loss(self) -> None:
        """Tell everything that waits that the connection was lost."""
        for inbox in self._inboxes.values():
            inbox.put(None)

    async def next(self, inbox: ReplyInbox, timeout: float) -> Msg | None:
        """Return the next reply, or None if the connection was lost; raises TimeoutError."""
        if not inbox.messages:
            loop = asyncio.get_running_loop()
            inbox.ticks, inbox.waiter = math.ceil(timeout / TICK_SECONDS), loop.create_future()
            if not self._is_ticking:
                self._is_ticking = True
                loop.call_later(TICK_SECONDS, self._tick)
            try:
                await inbox.waiter
            except TimeoutError:
                if not inbox.messages:
                    raise
            finally:
                inbox.waiter = None
        return inbox.messages.popleft()

    def _tick(self) -> None:
        waiting = [inbox for inbox in self._inboxes.values() if inbox.waiter is not None]
        self._is_ticking = bool(waiting)
        if waiting:
            asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        for inbox in waiting:
            inbox.tick()


def connect_error(error: BaseException, reported: Exception | None) -> Exception:
    """Return the error of a failed connection attempt.

    nats-py raises only that it found no server; the cause is in `reported`, the last error it reported.
    """
    if is_auth_error(error) or is_auth_error(reported):
        return BrokerRefused(CREDENTIALS_REFUSED)
    if isinstance(reported, PayloadLimitTooLow):
        return BrokerRefused(str(reported))
    if isinstance(error, NoServersError | OSError | NatsError | TimeoutError):
        cause = error if reported is None else reported  # whose text may be empty
        return BrokerUnreachable(f"cannot connect to NATS: {str(cause) or NO_GREETING}")
    return BrokerRefused(f"cannot connect to NATS: {error}")


def is_auth_error(error: BaseException | None) -> bool:
    """Return whether the server has rejected the credentials; a later attempt may fail without a reason."""
    text = str(error).lower()
    return "authorization" in text or "authentication" in text


def error_for(subject: str, error: Mapping[str, Any]) -> Exception:
    """Return the delivery error for the `error` object of a JetStream response on `subject`."""
    code = error.get("err_code")
    detail = f"{error.get('description', 'no reason given')} ({code}) on {subject}"
    if code in _WRONG_LAST_SEQUENCE:
        return AppendConflict(detail)
    if code in TRANSIENT_CODES:
        return BrokerUnreachable(detail)
    if code in _NO_SPACE:
        return BrokerFull()
    return BrokerRefused(detail)


def not_stored(cause: BrokerUnreachable) -> BrokerUnreachable:
    """Return the error of a message that a connected server does not confirm, with the remedy."""
    return BrokerUnreachable(
        f"NATS stores no messages ({cause}): see its server's log. If its disk is full, make space there, "
        "and restart that server if it does not go on by itself"
    )
