"""Sessions of the gateway, stored so that a later process resumes them.

A session is stored after the event at its sequence number was committed, never before. It is written at most
once a second: a resume from an older number only repeats events whose keys are known. Only a connection with
the same bot, intents and number of shards can resume it. Without the bot's token a session is of no use, so
it is no secret.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from channels.port import ChannelState

PREFIX = "session/"
WRITE_INTERVAL_SECONDS = 1.0
"""Seconds between two writes."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class GatewaySession:
    """The state that a resume needs."""

    id: str = ""
    url: str = ""
    sequence: int | None = None

    @property
    def can_resume(self) -> bool:
        """Whether there is a session to resume."""
        return bool(self.id) and self.sequence is not None

    def reset(self) -> None:
        """Forget the session, so that the next connection identifies."""
        self.id, self.url, self.sequence = "", "", None


def encode_session(session: GatewaySession, fingerprint: str) -> str:
    """Return a session as a value of the channel's state."""
    return json.dumps([fingerprint, session.id, session.url, session.sequence])


def decode_session(value: str | None, fingerprint: str) -> GatewaySession:
    """Return the session that `encode_session` wrote for the same fingerprint; an empty one otherwise."""
    try:
        stored_for, number, url, sequence = json.loads(value or "")
    except (ValueError, TypeError, RecursionError):
        return GatewaySession()
    is_valid = isinstance(number, str) and isinstance(url, str) and isinstance(sequence, int)
    return (
        GatewaySession(number, url, sequence) if is_valid and stored_for == fingerprint else GatewaySession()
    )


class GatewaySessions:
    """The stored sessions of one bot's shards."""

    def __init__(self, state: ChannelState, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._saved: dict[str, GatewaySession] = {}
        self._saved_at: dict[str, float] = {}

    async def shard_count(self) -> int:
        """Return the number of shards whose sessions were stored last; raises what the state raises."""
        count = await self._state.get(f"{PREFIX}shards") or ""
        return int(count) if count.isdecimal() else 0

    async def save_shard_count(self, count: int) -> None:
        """Store the number of shards; raises what the state raises."""
        await self._state.set({f"{PREFIX}shards": str(count)})

    async def load(self, shard: int, fingerprint: str) -> GatewaySession:
        """Return a shard's session; raises what the state raises."""
        return decode_session(await self._state.get(f"{PREFIX}{shard}"), fingerprint)

    async def save(
        self, shard: int, session: GatewaySession, fingerprint: str, *, at_once: bool = False
    ) -> None:
        """Store a shard's session: a new one at once, a sequence number at most once a second."""
        name, known = f"{PREFIX}{shard}", self._saved.get(f"{PREFIX}{shard}")
        is_new = known is None or known.id != session.id
        is_due = self._clock() - self._saved_at.get(name, float("-inf")) >= WRITE_INTERVAL_SECONDS
        if not session.can_resume or known == session or not (is_new or is_due or at_once):
            return
        self._saved_at[name] = self._clock()
        try:
            await self._state.set({name: encode_session(session, fingerprint)})
        except Exception as error:  # noqa: BLE001 - any error of the state's store; the next event tries again
            log.warning("discord.session_save_failed", error=repr(error))
            return
        self._saved[name] = replace(session)
