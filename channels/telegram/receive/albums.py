"""Albums of a bot that is posted to.

Telegram posts the updates of one chat one after the other: the second picture of an album comes only when
the first is answered 2xx. So the parts cannot be waited for with the answer held back. Each is kept durably
(in the channel's notes) and answered; a moment after the last one, or when something else comes from that
chat, all are told as one message. What a crash leaves on the shelf is told by whoever receives next. An
album's notes are emptied when it is told; a part that comes after that is a message of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from channels.message import IgnoredUpdate
from channels.port import Accept, ChannelState
from channels.telegram import payloads
from channels.telegram.receive import codec

CHUNK_CHARACTERS = 900
"""Characters of a part in one note; a note takes 1,000."""

MAX_CHUNKS = 40
PREFIX = "album:"
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
FLUSH_INTERVAL_SECONDS = 60.0
"""How often whoever receives looks for albums that another process left."""

FLUSH_TIMEOUT_SECONDS = 5.0
"""Seconds that something else from a chat waits for its album to be told."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _PendingAlbum:
    """An album that is waited for: `more` when a part came, `over` when there will be none."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_complete: bool = False
    task: asyncio.Task[None] | None = None


class AlbumBuffer:
    """Keeps the parts of albums until they are told; its tasks end with it."""

    def __init__(self, state: ChannelState, *, channel: str, bot: payloads.Bot, seconds: float) -> None:
        self._state = state
        self._channel = channel
        self._bot = bot
        self._seconds = seconds
        self._pending: dict[str, _PendingAlbum] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [waiting.task for waiting in self._pending.values() if waiting.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def add(self, album: str, update: object, accept: Accept) -> bool:
        """Keep a part; False when it is to be told by itself. Raises what the notes raise."""
        notes = _encode_chunks(f"{PREFIX}{album}:", update)
        if not notes:
            return False
        known = await self._state.list(f"{PREFIX}{album}:")
        if known and not any(known.values()):
            return bool(notes.keys() <= known.keys())  # repeated: told already; else too late
        await self._state.set(notes)
        self._schedule(album, accept)
        return True

    async def flush(self, room: int, *, except_album: str | None) -> bool:
        """Tell a room's albums (but one) now, as something else came from there; False when that failed."""
        tasks = []
        for album, waiting in self._pending.items():
            if album != except_album and album.startswith(f"{room}:") and waiting.task:
                waiting.is_complete = True
                waiting.changed.set()
                tasks.append(waiting.task)
        return not tasks or not (await asyncio.wait(tasks, timeout=FLUSH_TIMEOUT_SECONDS))[1]

    async def flush_expired(self, accept: Accept) -> None:
        """Tell what was left on the shelf; wanted at the start and every LOOK_SECONDS."""
        try:
            left = await self._state.list(PREFIX)
        except Exception as error:  # noqa: BLE001 - whatever keeps notes from being read passes or is told elsewhere
            log.warning("telegram.album_lookup_failed: %r", error)
            left = {}
        for album in {_album_of(name) for name, note in left.items() if note} - self._pending.keys():
            self._schedule(album, accept)

    def _schedule(self, album: str, accept: Accept) -> None:
        """Tell an album when no part has come for a moment."""
        known = self._pending.get(album)
        if known is not None and known.task and not known.task.done():
            known.changed.set()
            return
        waiting = self._pending[album] = _PendingAlbum()
        waiting.task = asyncio.create_task(self._accept_when_complete(album, waiting, accept))

    async def _accept_when_complete(self, album: str, pending: _PendingAlbum, accept: Accept) -> None:
        try:
            while True:
                await self._wait_for_parts(pending)
                pending.changed.clear()
                failures = 0
                while not await self._try_accept(album, accept):
                    await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
                    failures += 1
                if not pending.changed.is_set():  # no part came while the others were told
                    return
        finally:
            self._pending.pop(album, None)

    async def _wait_for_parts(self, pending: _PendingAlbum) -> None:
        """Return when nothing more has come for a moment, or nothing more is to come."""
        with suppress(TimeoutError):
            while not pending.is_complete:
                pending.changed.clear()
                async with asyncio.timeout(self._seconds):
                    await pending.changed.wait()

    async def _try_accept(self, album: str, accept: Accept) -> bool:
        """Accept an album and empty its notes; False when that is to be tried again."""
        try:
            notes = await self._state.list(f"{PREFIX}{album}:")
            parts = _decode_chunks(notes)
            if not parts:
                return True
            decoded = codec.decode_album(parts, channel=self._channel, bot=self._bot)
            if isinstance(decoded, IgnoredUpdate):
                log.debug("telegram.update_ignored: %s", decoded.reason)
            else:
                await accept(decoded)
            await self._state.set(dict.fromkeys(notes, ""))
        except Exception as error:  # noqa: BLE001 - it stays on the shelf until it can be stored
            log.warning("telegram.album_not_stored: %r", error)
            return False
        return True


def _encode_chunks(prefix: str, update: object) -> dict[str, str]:
    """Return an update as notes; none when it is too large to be kept so."""
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
    """Return the updates that notes hold, in order."""
    texts: dict[str, str] = {}
    for name in sorted(values):
        number = name.rsplit(":", 1)[0]
        texts[number] = texts.get(number, "") + values[name]
    return [json.loads(text) for text in texts.values() if text]
