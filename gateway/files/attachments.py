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
from channels.port import ChannelFeature
from delivery.chat.sink import ConnectedBot
from delivery.database.clock import utc_now
from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.transactions import Transactions
from delivery.errors import DeliveryError
from delivery.events.event import new_id
from gateway.agents.port import AgentImage
from gateway.config.setting_types import FileSettings
from gateway.conversations.notices import post_notice
from gateway.environments.resolver import Environment, EnvironmentResolver
from gateway.files import media_types
from gateway.files.file_store import FileStore
from gateway.store.conversations import files as store
from gateway.store.conversations import messages
from gateway.store.conversations.files import FileRow, FileState
from gateway.store.turns.turns import Turn
from sandbox.errors import SandboxError, UnsafePath

log = structlog.get_logger(__name__)

INBOX = "inbox"
MAX_IMAGES = 10
MAX_IMAGE_BYTES = 5_000_000
CONNECT_TIMEOUT = 10.0
"""Seconds a turn waits for the channel that has its files: a gateway that has just started connects it."""
_POLL_SECONDS = 0.05
_RETRY_DELAYS = (1.0, 3.0)
_MAX_NAME_TRIES = 50


class NotFetched(Exception):
    """An attachment could not be had; the message says why, for people and models alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedAttachments:
    """What came with a turn: a line for each file, what else the agent must know, and images to be seen."""

    lines: tuple[str, ...] = ()
    images: tuple[AgentImage, ...] = ()


FindBot = Callable[[str], ConnectedBot | None]
"""Find a connected bot by channel id."""


class AttachmentFetcher:
    """Fetches what people attached. Every step is written down, so that a restart goes on where it was."""

    def __init__(
        self,
        *,
        transactions: Transactions,
        environment_resolver: EnvironmentResolver,
        file_store: FileStore,
        find: FindBot,
        settings: FileSettings,
        checkpoint: Callable[[str], None],
    ) -> None:
        self._transactions = transactions
        self._environment_resolver = environment_resolver
        self._file_store = file_store
        self._find = find
        self._settings = settings
        self._checkpoint = checkpoint
        self._reserved_paths: set[tuple[str, str]] = set()

    async def fetch(self, turn: Turn, environment: Environment) -> FetchedAttachments:
        """Return what a turn has to work with beside its text; what cannot be fetched is told to people."""
        async with self._transactions.database.read() as connection:
            attached = await messages.list_attachments(connection, turn.id)
            notes = await store.list_notes(connection, turn.conversation, turn.id)
        if notes:
            async with self._transactions.database.begin() as connection:
                await store.mark_noted(connection, notes, turn.id)
        rows = [
            await self._receive_one(turn, environment, place, attachment)
            for place, attachment in enumerate(attached)
        ]
        if not rows and not notes:
            return FetchedAttachments()
        images = await self._images(rows)
        return FetchedAttachments(
            lines=(*map(render_line, rows), *(f"[{note}]" for note in notes.values())), images=images
        )

    async def _receive_one(
        self, turn: Turn, environment: Environment, index: int, attachment: Mapping[str, Any]
    ) -> FileRow:
        """Return an attachment as it was received, now or by an earlier attempt at the turn."""
        identity = sha256(f"in\n{turn.id}\n{index}".encode()).hexdigest()
        async with self._transactions.database.read() as connection:
            row = await store.get_by_identity(connection, turn.conversation, identity)
        if row is None:
            row = await self._register(turn, environment, identity, attachment)
        if row.state is FileState.ARRIVING:
            await self._fetch_one(turn, environment, row, attachment)
            async with self._transactions.database.read() as connection:
                row = await store.get_by_identity(connection, turn.conversation, identity) or row
        return row

    async def _register(
        self, turn: Turn, environment: Environment, identity: str, attachment: Mapping[str, Any]
    ) -> FileRow:
        """Give an attachment its name in the inbox before anything of it is fetched."""
        name = media_types.sanitize_name(str(attachment.get("name", "")))
        row = FileRow(
            id=new_id("fil"),
            account=turn.account,
            conversation=turn.conversation,
            turn=turn.id,
            state=FileState.ARRIVING,
            identity=identity,
            path=await self._free_path(environment, name),
            name=name,
            type=str(attachment.get("type") or media_types.BINARY)[:120],
            size=_size(attachment),
            sha256=None,
            created_at=utc_now(),
        )
        async with self._transactions.begin("file.arrive") as entry:
            await store.add(entry.connection, row)
        return row

    async def _free_path(self, environment: Environment, name: str) -> str:
        """Return a path in the inbox that no file has; empty where there is no place for files."""
        if environment.workspace is None or environment.spec.read_only:
            return ""
        names = [media_types.numbered_name(name, number) for number in range(1, _MAX_NAME_TRIES)]
        for candidate in (*names, f"{secrets.token_hex(4)} {name}"):
            path = f"{INBOX}/{candidate}"
            if (environment.workspace, path) not in self._reserved_paths and await self._is_free(
                environment, path
            ):
                self._reserved_paths.add((environment.workspace, path))
                return path
        return ""

    async def _is_free(self, environment: Environment, path: str) -> bool:
        try:
            await (await self._environment_resolver.sandbox(environment)).read(path, limit=1)
        except FileNotFoundError:
            return True
        except (SandboxError, OSError):
            return False
        return False

    async def _fetch_one(
        self, turn: Turn, environment: Environment, row: FileRow, attachment: Mapping[str, Any]
    ) -> None:
        try:
            content = await self._read_content(turn, row, attachment)
            kind = media_types.detect_media_type(content[:65536], row.name)
            digest = await self._file_store.write_blob(content)
            self._checkpoint("file.fetched")
            path = await self._write_to_inbox(environment, row, kind, content)
        except (NotFetched, DeliveryError, OSError) as error:
            await self._record_failure(turn, row, str(error))
            return
        finally:
            self._reserved_paths.discard((environment.workspace or "", row.path))
        self._checkpoint("file.written")
        async with self._transactions.begin("file.arrive") as entry:
            await store.record_fetch_result(
                entry.connection,
                row.id,
                state=FileState.RECEIVED,
                path=path,
                content=(kind, len(content), digest),
            )

    async def _write_to_inbox(
        self, environment: Environment, row: FileRow, media_type: str, content: bytes
    ) -> str:
        """Write a file into the inbox; raises NotFetched when only that would have made it of use."""
        if not row.path:
            if media_type in media_types.IMAGES:
                return ""
            raise NotFetched("there is no workspace to put it into")
        try:
            await (await self._environment_resolver.sandbox(environment)).write(row.path, content)
        except (SandboxError, UnsafePath, OSError) as error:
            raise NotFetched(f"it could not be written into the workspace: {error}") from None
        return row.path

    async def _record_failure(self, turn: Turn, row: FileRow, reason: str) -> None:
        """Write down that a file did not come, and tell the person in the same breath."""
        log.warning("files.fetch_failed", turn=turn.id, why=reason)
        reason = " ".join(reason.split())[:300]
        async with self._transactions.begin("file.arrive") as entry:
            await store.record_fetch_result(entry.connection, row.id, state=FileState.MISSING, reason=reason)
            await post_notice(
                entry, turn.conversation, f"I could not take `{row.name.replace('`', chr(39))}`: {reason}."
            )

    async def _read_content(self, turn: Turn, row: FileRow, attachment: Mapping[str, Any]) -> bytes:
        """Return an attachment's bytes, from the shelf or through its channel; raises NotFetched."""
        most = self._settings.attachment_bytes
        if row.size > most:
            raise NotFetched(
                f"it has {media_types.render_size(row.size)}, and {media_types.render_size(most)} is the most"
            )
        if not row.path and not str(attachment.get("type", "")).startswith("image/"):
            raise NotFetched("there is no workspace to put it into")
        if attachment.get("id"):
            return await self._read_upload(turn, str(attachment["id"]))
        if not attachment.get("ref") or not attachment.get("channel"):
            raise NotFetched("it was named, and not sent")
        return await self._download(str(attachment["channel"]), str(attachment["ref"]))

    async def _read_upload(self, turn: Turn, file: str) -> bytes:
        row = await self._file_store.get(file)
        content = await self._file_store.read(file) if row and row.account == turn.account else None
        if content is None:
            raise NotFetched("it is not kept any more")
        return content

    async def _download(self, channel: str, ref: str) -> bytes:
        for wait in (*_RETRY_DELAYS, None):
            bot = await self._wait_for_bot(channel)
            try:
                async with asyncio.timeout(self._settings.attachment_timeout):
                    return await self._read_from_channel(bot, ref)
            except TimeoutError:
                raise NotFetched("it did not arrive in time") from None
            except ChannelError as error:
                if error.remedy != "retry" or wait is None:
                    raise NotFetched(str(error)) from error
            await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    async def _wait_for_bot(self, channel: str) -> ConnectedBot:
        deadline = asyncio.get_running_loop().time() + CONNECT_TIMEOUT
        # A bot may be connected again by anybody's doing: looking is simpler than an event for each.
        while (bot := self._find(channel)) is None:
            if asyncio.get_running_loop().time() > deadline:
                raise NotFetched("its channel is not connected")
            await asyncio.sleep(_POLL_SECONDS)
        if ChannelFeature.DOWNLOAD not in bot.features:
            raise NotFetched("files cannot be taken from this platform")
        return bot

    async def _read_from_channel(self, bot: ConnectedBot, ref: str) -> bytes:
        content, most = bytearray(), self._settings.attachment_bytes
        async for chunk in bot.sender.download(ref):
            content += chunk
            if len(content) > most:
                raise NotFetched(f"it has more than {media_types.render_size(most)}, which is the most")
        return bytes(content)

    async def _images(self, rows: Sequence[FileRow]) -> tuple[AgentImage, ...]:
        images: list[AgentImage] = []
        for row in rows:
            if len(images) == MAX_IMAGES or not is_model_image(row) or row.sha256 is None:
                continue
            try:
                content = await self._file_store.read_blob(row.sha256)
            except (DeliveryError, DatabaseUnavailable, OSError) as error:
                log.warning("files.image_read_failed", file=row.id, error=str(error))
                continue
            if content is not None:
                images.append(AgentImage(name=row.path or row.name, media_type=row.type, content=content))
        return tuple(images)


def is_model_image(row: FileRow) -> bool:
    """Say whether a file is an image that models are given."""
    received = row.state is FileState.RECEIVED and row.type in media_types.IMAGES
    return received and row.size <= MAX_IMAGE_BYTES


def render_line(row: FileRow) -> str:
    """Return what the agent reads of one attachment."""
    if row.state is not FileState.RECEIVED:
        return f"[attachment {row.name} is not here: {row.caption or 'it could not be fetched'}]"
    size = f"{media_types.render_size(row.size)}, {row.type}"
    if not row.path:
        return f"[attached image: {row.name}, {size}; there is no workspace it could lie in]"
    large = row.type in media_types.IMAGES and row.size > MAX_IMAGE_BYTES
    return f"[attached: {row.path}, {size}{'; too large to be shown to you' if large else ''}]"


def _size(attachment: Mapping[str, Any]) -> int:
    size = attachment.get("size")
    return size if isinstance(size, int) and size >= 0 else 0
