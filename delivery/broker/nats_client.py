"""nats-py as the connection uses it: a client with less work per message, and its errors as our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoServersError

from delivery.errors import AppendConflict, BrokerRefused, BrokerUnreachable

_WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
TRANSIENT_CODES = frozenset({10008, 10164})
"""Error codes worth a retry: JetStream not yet available, or another append to the subject in flight."""


class NatsClient(Client):
    """nats-py with a faster header parser, and without queues before the socket and behind it.

    The original parser checks every character of every name, which is half the cost of a replay. The original
    client has a queue and a task for what is sent, and for the messages of each subscription; each takes
    steps of the event loop. If a later version no longer calls these methods, only the speed changes.
    """

    replies: Subscription | None = None
    """The subscription whose messages go to `on_reply` as they are read from the socket."""

    on_reply: Callable[[Msg], None]

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if self.replies is None or sid != self.replies._id:  # noqa: SLF001 - the number of the subscription
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        parsed = await self._process_headers(headers)
        self.on_reply(self._build_message(sid, subject, reply, data, parsed))

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
        header_lines = raw.decode("utf-8", "replace").split("\r\n")
        parts = (header.partition(":") for header in header_lines)
        return {name.strip(): value.strip() for name, colon, value in parts if colon}


def connect_error(error: BaseException, reported: Exception | None) -> Exception:
    """Return the error of a failed connection attempt.

    nats-py raises only that it found no server; the cause is in `reported`, the last error it reported.
    """
    if is_auth_error(error) or is_auth_error(reported):
        return BrokerRefused("the NATS server refuses the credentials; check the URL and the token")
    if isinstance(error, NoServersError | OSError | NatsError | TimeoutError):
        return BrokerUnreachable(f"cannot connect to NATS: {reported or error}")
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
    return BrokerRefused(detail)
