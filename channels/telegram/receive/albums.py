"""Join the parts of an album that arrive by webhook.

Telegram posts the updates of one chat one at a time: it sends the second picture of an album only after the
first was answered with 2xx. So each part is stored durably in the channel's state and answered at once.
Shortly after the last part, or when another update of that chat arrives, all parts are accepted as one
message. Parts that a crash leaves behind are accepted by the next process that receives. Once an album is
accepted its values are emptied; a part that arrives later is a message of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import structlog

from channels.message import IgnoredUpdate
from channels.port import Accept, ChannelState
from channels.telegram.receive import codec
from channels.telegram.receive.decoder import Decoder

CHUNK_CHARACTERS = 900
"""Characters of a part stored in one value, which may hold 1,000."""

MAX_CHUNKS = 40
PREFIX = "album:"
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
FLUSH_INTERVAL_SECONDS = 60.0
"""Seconds between checks for albums that another process left behind."""

FLUSH_TIMEOUT_SECONDS = 5.0
"""Seconds that another update of a chat waits for its album to be accepted."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _PendingAlbum:
    """An album that waits for parts: `changed` is set by each part, `is_complete` by the last."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_complete: bool = False
    task: asyncio.Task[None] | None = None


class AlbumBuffer:
    """Buffers the parts of albums until they are accepted; closing it cancels its tasks."""

    def __init__(self, state: ChannelState, decoder: Decoder, *, seconds: float) -> None:
        self._state = state
        self._decoder = decoder
        self._seconds = seconds
        self._pending: dict[str, _PendingAlbum] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [pending.task for pending in self._pending.values() if pending.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def add(self, album: str, update: object, accept: Accept) -> bool:
        """Store a part; False if it must be accepted on its own. Raises what the state raises."""
        chunks = _encode_chunks(f"{PREFIX}{album}:", update)
        if not chunks:
            return False
        known = await self._state.list(f"{PREFIX}{album}:")
        if known and not any(known.values()):
            # A repeated part was accepted before; a new one is too late.
            return chunks.keys() <= known.keys()
        await self._state.set(chunks)
        self._schedule(album, accept)
        return True

    async def flush(self, room: int, *, except_album: str | None) -> bool:
        """Accept a room's albums now, except one; False if that failed. Keeps a room's order."""
        tasks = []
        for album, pending in self._pending.items():
            if album != except_album and album.startswith(f"{room}:") and pending.task:
                pending.is_complete = True
                pending.changed.set()
                tasks.append(pending.task)
        return not tasks or not (await asyncio.wait(tasks, timeout=FLUSH_TIMEOUT_SECONDS))[1]

    async def flush_expired(self, accept: Accept) -> None:
        """Accept albums left by another process; run at start and every FLUSH_INTERVAL_SECONDS."""
        try:
            stored = await self._state.list(PREFIX)
        except Exception as error:  # noqa: BLE001 - any state error; the next check tries again
            log.warning("telegram.album_lookup_failed", error=repr(error))
            stored = {}
        for album in {_album_of(name) for name, value in stored.items() if value} - self._pending.keys():
            self._schedule(album, accept)

    def _schedule(self, album: str, accept: Accept) -> None:
        """Accept an album once no part has arrived for `seconds`."""
        known = self._pending.get(album)
        if known is not None and known.task and not known.task.done():
            known.changed.set()
            return
        pending = self._pending[album] = _PendingAlbum()
        pending.task = asyncio.create_task(self._accept_when_complete(album, pending, accept))

    async def _accept_when_complete(self, album: str, pending: _PendingAlbum, accept: Accept) -> None:
        try:
            while True:
                await self._wait_for_parts(pending)
                pending.changed.clear()
                failures = 0
                while not await self._try_accept(album, accept):
                    await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
                    failures += 1
                if not pending.changed.is_set():  # no part arrived while the others were accepted
                    return
        finally:
            self._pending.pop(album, None)

    async def _wait_for_parts(self, pending: _PendingAlbum) -> None:
        """Return when no part has arrived for `seconds`, or the album is complete."""
        with suppress(TimeoutError):
            while not pending.is_complete:
                pending.changed.clear()
                async with asyncio.timeout(self._seconds):
                    await pending.changed.wait()

    async def _try_accept(self, album: str, accept: Accept) -> bool:
        """Accept an album and empty its values; False if it must be tried again."""
        try:
            notes = await self._state.list(f"{PREFIX}{album}:")
            parts = _decode_chunks(notes)
            if not parts:
                return True
            decoded = await self._decoder.decode(parts)
            if isinstance(decoded, IgnoredUpdate):
                log.debug("telegram.update_ignored", reason=decoded.reason)
            else:
                await accept(decoded)
            await self._state.set(dict.fromkeys(notes, ""))
        except Exception as error:  # noqa: BLE001 - the album stays stored until it is accepted
            log.warning("telegram.album_not_stored", error=repr(error))
            return False
        return True


def _encode_chunks(prefix: str, update: object) -> dict[str, str]:
    """Return an update as values of the channel's state; empty if it is too large."""
    text = json.dumps(update)
    size = range(0, len(text), CHUNK_CHARACTERS)
    if len(size) > MAX_CHUNKS:
        return {}
    number = codec.update_id_of(update)
    return {
        f"{prefix}{number:020}:{place:03}": text[start : start + CHUNK_CHARACTERS]
        for place, start in enumerate(size)
    }


def _album_of(name: str) -> str:
    return name.removeprefix(PREFIX).rsplit(":", 2)[0]


def _decode_chunks(values: Mapping[str, str]) -> list[object]:
    """Return the updates that the values hold, in order."""
    texts: dict[str, str] = {}
    for name in sorted(values):
        number = name.rsplit(":", 1)[0]
        texts[number] = texts.get(number, "") + values[name]
    return [json.loads(text) for text in texts.values() if text]
