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

from channels.message import Ignored
from channels.port import Accept, Notes
from channels.telegram import payloads
from channels.telegram.receive import codec

PIECE = 900
"""Characters of a part in one note; a note takes 1,000."""

MOST_PIECES = 40
PREFIX = "album:"
PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
LOOK_SECONDS = 60.0
"""How often whoever receives looks for albums that another process left."""

PATIENCE = 5.0
"""Seconds that something else from a chat waits for its album to be told."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiting:
    """An album that is waited for: `more` when a part came, `over` when there will be none."""

    more: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False
    task: asyncio.Task[None] | None = None


class Shelf:
    """Keeps the parts of albums until they are told; its tasks end with it."""

    def __init__(self, notes: Notes, *, channel: str, bot: payloads.Bot, seconds: float) -> None:
        self._notes = notes
        self._channel = channel
        self._bot = bot
        self._seconds = seconds
        self._waiting: dict[str, _Waiting] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [waiting.task for waiting in self._waiting.values() if waiting.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def keep(self, album: str, update: object, accept: Accept) -> bool:
        """Keep a part; False when it is to be told by itself. Raises what the notes raise."""
        notes = _pieces(f"{PREFIX}{album}:", update)
        if not notes:
            return False
        known = await self._notes.all(f"{PREFIX}{album}:")
        if known and not any(known.values()):
            return bool(notes.keys() <= known.keys())  # repeated: told already; else too late
        await self._notes.put(notes)
        self._await(album, accept)
        return True

    async def finish(self, room: int, *, but: str | None) -> bool:
        """Tell a room's albums (but one) now, as something else came from there; False when that failed."""
        tasks = []
        for album, waiting in self._waiting.items():
            if album != but and album.startswith(f"{room}:") and waiting.task:
                waiting.over = True
                waiting.more.set()
                tasks.append(waiting.task)
        return not tasks or not (await asyncio.wait(tasks, timeout=PATIENCE))[1]

    async def look(self, accept: Accept) -> None:
        """Tell what was left on the shelf; wanted at the start and every LOOK_SECONDS."""
        try:
            left = await self._notes.all(PREFIX)
        except Exception as error:  # noqa: BLE001 - whatever keeps notes from being read passes or is told elsewhere
            log.warning("telegram: albums that wait cannot be looked for: %r", error)
            left = {}
        for album in {_album_of(name) for name, note in left.items() if note} - self._waiting.keys():
            self._await(album, accept)

    def _await(self, album: str, accept: Accept) -> None:
        """Tell an album when no part has come for a moment."""
        known = self._waiting.get(album)
        if known is not None and known.task and not known.task.done():
            known.more.set()
            return
        waiting = self._waiting[album] = _Waiting()
        waiting.task = asyncio.create_task(self._tell(album, waiting, accept))

    async def _tell(self, album: str, waiting: _Waiting, accept: Accept) -> None:
        try:
            while True:
                await self._quiet(waiting)
                waiting.more.clear()
                failures = 0
                while not await self._told(album, accept):
                    await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
                    failures += 1
                if not waiting.more.is_set():  # no part came while the others were told
                    return
        finally:
            self._waiting.pop(album, None)

    async def _quiet(self, waiting: _Waiting) -> None:
        """Return when nothing more has come for a moment, or nothing more is to come."""
        with suppress(TimeoutError):
            while not waiting.over:
                waiting.more.clear()
                async with asyncio.timeout(self._seconds):
                    await waiting.more.wait()

    async def _told(self, album: str, accept: Accept) -> bool:
        """Accept an album and empty its notes; False when that is to be tried again."""
        try:
            notes = await self._notes.all(f"{PREFIX}{album}:")
            parts = _parts(notes)
            if not parts:
                return True
            decoded = codec.decode_album(parts, channel=self._channel, bot=self._bot)
            if isinstance(decoded, Ignored):
                log.debug("telegram: ignored %s", decoded.reason)
            else:
                await accept(decoded)
            await self._notes.put(dict.fromkeys(notes, ""))
        except Exception as error:  # noqa: BLE001 - it stays on the shelf until it can be stored
            log.warning("telegram: an album is not stored yet: %r", error)
            return False
        return True


def _pieces(prefix: str, update: object) -> dict[str, str]:
    """Return an update as notes; none when it is too large to be kept so."""
    text = json.dumps(update)
    size = range(0, len(text), PIECE)
    if len(size) > MOST_PIECES:
        return {}
    number = codec.number_of(update)
    return {
        f"{prefix}{number:020}:{place:03}": text[start : start + PIECE] for place, start in enumerate(size)
    }


def _album_of(name: str) -> str:
    return name.removeprefix(PREFIX).rsplit(":", 2)[0]


def _parts(notes: Mapping[str, str]) -> list[object]:
    """Return the updates that notes hold, in order."""
    texts: dict[str, str] = {}
    for name in sorted(notes):
        number = name.rsplit(":", 1)[0]
        texts[number] = texts.get(number, "") + notes[name]
    return [json.loads(text) for text in texts.values() if text]
