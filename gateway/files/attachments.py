"""Files from people: fetched once as a turn begins, put into `inbox/`, told to the agent line by line."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import structlog

from channels.errors import ChannelError
from channels.port import Feature
from delivery.chat.sink import Bot
from delivery.database.clock import utc_now
from delivery.database.engine import Unavailable
from delivery.deliveries.transactions import Ledger
from delivery.errors import DeliveryError
from delivery.events.event import new_id
from gateway.agents.port import Image
from gateway.config.setting_types import FileSettings
from gateway.conversations.notices import give_notice
from gateway.environments.resolver import Bench, Workbench
from gateway.files import media_types
from gateway.files.file_store import Shelf
from gateway.store.conversations import files as store
from gateway.store.conversations import messages
from gateway.store.conversations.files import FileRow, FileState
from gateway.store.turns.turns import Turn
from sandbox.errors import SandboxError, Unsafe

log = structlog.get_logger(__name__)

INBOX = "inbox"
MOST_IMAGES = 10
LARGEST_IMAGE = 5_000_000
CONNECTED_WITHIN = 10.0
"""Seconds a turn waits for the channel that has its files: a gateway that has just started connects it."""
_LOOK_EVERY = 0.05
_WAITS = (1.0, 3.0)
_NAMES = 50


class NotFetched(Exception):
    """An attachment could not be had; the message says why, for people and models alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What came with a turn: a line for each file, what else the agent must know, and images to be seen."""

    lines: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()


Find = Callable[[str], Bot | None]
"""Find a connected bot by channel id."""


class Incoming:
    """Fetches what people attached. Every step is written down, so that a restart goes on where it was."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        workbench: Workbench,
        shelf: Shelf,
        find: Find,
        settings: FileSettings,
        checkpoint: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._workbench = workbench
        self._shelf = shelf
        self._find = find
        self._settings = settings
        self._checkpoint = checkpoint
        self._promised: set[tuple[str, str]] = set()

    async def receive(self, turn: Turn, bench: Bench) -> Brought:
        """Return what a turn has to work with beside its text; what cannot be fetched is told to people."""
        async with self._ledger.database.read() as connection:
            attached = await messages.attachments_of(connection, turn.id)
            notes = await store.notes_for(connection, turn.conversation, turn.id)
        if notes:
            async with self._ledger.database.begin() as connection:
                await store.mark_noted(connection, notes, turn.id)
        rows = [await self._row(turn, bench, place, attachment) for place, attachment in enumerate(attached)]
        if not rows and not notes:
            return Brought()
        images = await self._images(rows)
        return Brought(lines=(*map(line_of, rows), *(f"[{note}]" for note in notes.values())), images=images)

    async def _row(self, turn: Turn, bench: Bench, place: int, attachment: Mapping[str, Any]) -> FileRow:
        """Return an attachment as it was received, now or by an earlier attempt at the turn."""
        identity = sha256(f"in\n{turn.id}\n{place}".encode()).hexdigest()
        async with self._ledger.database.read() as connection:
            row = await store.of_identity(connection, turn.conversation, identity)
        if row is None:
            row = await self._announce(turn, bench, identity, attachment)
        if row.state is FileState.ARRIVING:
            await self._fetch(turn, bench, row, attachment)
            async with self._ledger.database.read() as connection:
                row = await store.of_identity(connection, turn.conversation, identity) or row
        return row

    async def _announce(
        self, turn: Turn, bench: Bench, identity: str, attachment: Mapping[str, Any]
    ) -> FileRow:
        """Give an attachment its name in the inbox before anything of it is fetched."""
        name = media_types.clean_name(str(attachment.get("name", "")))
        row = FileRow(
            id=new_id("fil"),
            account=turn.account,
            conversation=turn.conversation,
            turn=turn.id,
            state=FileState.ARRIVING,
            identity=identity,
            path=await self._free_path(bench, name),
            name=name,
            type=str(attachment.get("type") or media_types.BINARY)[:120],
            size=_size(attachment),
            sha256=None,
            created_at=utc_now(),
        )
        async with self._ledger.entry("file.arrive") as entry:
            await store.add(entry.connection, row)
        return row

    async def _free_path(self, bench: Bench, name: str) -> str:
        """Return a path in the inbox that no file has; empty where there is no place for files."""
        if bench.workspace is None or bench.spec.read_only:
            return ""
        names = [media_types.numbered(name, number) for number in range(1, _NAMES)]
        for candidate in (*names, f"{secrets.token_hex(4)} {name}"):
            path = f"{INBOX}/{candidate}"
            if (bench.workspace, path) not in self._promised and await self._is_free(bench, path):
                self._promised.add((bench.workspace, path))
                return path
        return ""

    async def _is_free(self, bench: Bench, path: str) -> bool:
        try:
            await (await self._workbench.sandbox(bench)).read(path, limit=1)
        except FileNotFoundError:
            return True
        except (SandboxError, OSError):
            return False
        return False

    async def _fetch(self, turn: Turn, bench: Bench, row: FileRow, attachment: Mapping[str, Any]) -> None:
        try:
            content = await self._content(turn, row, attachment)
            kind = media_types.media_type(content[:65536], row.name)
            digest = await self._shelf.put(content)
            self._checkpoint("file.fetched")
            path = await self._put_away(bench, row, kind, content)
        except (NotFetched, DeliveryError, OSError) as error:
            await self._miss(turn, row, str(error))
            return
        finally:
            self._promised.discard((bench.workspace or "", row.path))
        self._checkpoint("file.written")
        async with self._ledger.entry("file.arrive") as entry:
            await store.arrive(
                entry.connection,
                row.id,
                state=FileState.RECEIVED,
                path=path,
                content=(kind, len(content), digest),
            )

    async def _put_away(self, bench: Bench, row: FileRow, kind: str, content: bytes) -> str:
        """Write a file into the inbox; raises NotFetched when only that would have made it of use."""
        if not row.path:
            if kind in media_types.IMAGES:
                return ""
            raise NotFetched("there is no workspace to put it into")
        try:
            await (await self._workbench.sandbox(bench)).write(row.path, content)
        except (SandboxError, Unsafe, OSError) as error:
            raise NotFetched(f"it could not be written into the workspace: {error}") from None
        return row.path

    async def _miss(self, turn: Turn, row: FileRow, why: str) -> None:
        """Write down that a file did not come, and tell the person in the same breath."""
        log.warning("files.not_received", turn=turn.id, why=why)
        why = " ".join(why.split())[:300]
        async with self._ledger.entry("file.arrive") as entry:
            await store.arrive(entry.connection, row.id, state=FileState.MISSING, why=why)
            await give_notice(
                entry, turn.conversation, f"I could not take `{row.name.replace('`', chr(39))}`: {why}."
            )

    async def _content(self, turn: Turn, row: FileRow, attachment: Mapping[str, Any]) -> bytes:
        """Return an attachment's bytes, from the shelf or through its channel; raises NotFetched."""
        most = self._settings.attachment_bytes
        if row.size > most:
            raise NotFetched(
                f"it has {media_types.shown_size(row.size)}, and {media_types.shown_size(most)} is the most"
            )
        if not row.path and not str(attachment.get("type", "")).startswith("image/"):
            raise NotFetched("there is no workspace to put it into")
        if attachment.get("id"):
            return await self._uploaded(turn, str(attachment["id"]))
        if not attachment.get("ref") or not attachment.get("channel"):
            raise NotFetched("it was named, and not sent")
        return await self._downloaded(str(attachment["channel"]), str(attachment["ref"]))

    async def _uploaded(self, turn: Turn, file: str) -> bytes:
        row = await self._shelf.find(file)
        content = await self._shelf.content(file) if row and row.account == turn.account else None
        if content is None:
            raise NotFetched("it is not kept any more")
        return content

    async def _downloaded(self, channel: str, ref: str) -> bytes:
        for wait in (*_WAITS, None):
            bot = await self._connected(channel)
            try:
                async with asyncio.timeout(self._settings.attachment_timeout):
                    return await self._read(bot, ref)
            except TimeoutError:
                raise NotFetched("it did not arrive in time") from None
            except ChannelError as error:
                if error.remedy != "retry" or wait is None:
                    raise NotFetched(str(error)) from error
            await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    async def _connected(self, channel: str) -> Bot:
        deadline = asyncio.get_running_loop().time() + CONNECTED_WITHIN
        # A bot may be connected again by anybody's doing: looking is simpler than an event for each.
        while (bot := self._find(channel)) is None:
            if asyncio.get_running_loop().time() > deadline:
                raise NotFetched("its channel is not connected")
            await asyncio.sleep(_LOOK_EVERY)
        if Feature.DOWNLOAD not in bot.features:
            raise NotFetched("files cannot be taken from this platform")
        return bot

    async def _read(self, bot: Bot, ref: str) -> bytes:
        content, most = bytearray(), self._settings.attachment_bytes
        async for chunk in bot.channel.download(ref):
            content += chunk
            if len(content) > most:
                raise NotFetched(f"it has more than {media_types.shown_size(most)}, which is the most")
        return bytes(content)

    async def _images(self, rows: Sequence[FileRow]) -> tuple[Image, ...]:
        images: list[Image] = []
        for row in rows:
            if len(images) == MOST_IMAGES or not is_seen(row) or row.sha256 is None:
                continue
            try:
                content = await self._shelf.bytes_of(row.sha256)
            except (DeliveryError, Unavailable, OSError) as error:
                log.warning("files.image_not_read", file=row.id, error=str(error))
                continue
            if content is not None:
                images.append(Image(name=row.path or row.name, media_type=row.type, content=content))
        return tuple(images)


def is_seen(row: FileRow) -> bool:
    """Say whether a file is an image that models are given."""
    received = row.state is FileState.RECEIVED and row.type in media_types.IMAGES
    return received and row.size <= LARGEST_IMAGE


def line_of(row: FileRow) -> str:
    """Return what the agent reads of one attachment."""
    if row.state is not FileState.RECEIVED:
        return f"[attachment {row.name} is not here: {row.caption or 'it could not be fetched'}]"
    size = f"{media_types.shown_size(row.size)}, {row.type}"
    if not row.path:
        return f"[attached image: {row.name}, {size}; there is no workspace it could lie in]"
    large = row.type in media_types.IMAGES and row.size > LARGEST_IMAGE
    return f"[attached: {row.path}, {size}{'; too large to be shown to you' if large else ''}]"


def _size(attachment: Mapping[str, Any]) -> int:
    size = attachment.get("size")
    return size if isinstance(size, int) and size >= 0 else 0
