"""Attachments of people: fetched once when a turn starts, written to `inbox/`, described to the agent."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import structlog

from channels.errors import ChannelError
from channels.port import ChannelFeature
from delivery.chat.sink import ConnectedBot
from delivery.database.clock import utc_now
from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.transactions import Transactions
from delivery.errors import DeliveryError, as_sentence
from delivery.events.event import new_id
from gateway.agents.port import AgentImage
from gateway.config.file_settings import FileSettings
from gateway.conversations.notices import post_notice
from gateway.environments.environment import Environment
from gateway.environments.resolver import EnvironmentResolver
from gateway.files import media_types
from gateway.files.attachment_words import NO_WORKSPACE, AttachmentWords
from gateway.files.storage.file_store import FileStore
from gateway.files.storage.storage_quota import StorageFull
from gateway.files.transcription import Transcriber
from gateway.store.conversations import files as store
from gateway.store.conversations import messages
from gateway.store.conversations.files import FileRow, FileState
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from sandbox.errors import SandboxError, UnsafePath

log = structlog.get_logger(__name__)

INBOX = "inbox"
MAX_IMAGES = 10
MAX_IMAGE_BYTES = 5_000_000
CONNECT_TIMEOUT = 10.0
"""Seconds that a turn waits for its channel to connect, for instance after a start of the gateway."""
_POLL_SECONDS = 0.05
_RETRY_DELAYS = (1.0, 3.0)
_MAX_NAME_TRIES = 50


class NotFetched(Exception):
    """An attachment could not be fetched; the message gives the reason to people and models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedAttachments:
    """The attachments of a turn: lines for the agent about files and notes, and images for the model.

    `answers` are those of answers to tool calls, by the calls.
    """

    lines: tuple[str, ...] = ()
    images: tuple[AgentImage, ...] = ()
    answers: Mapping[str, FetchedAttachments] = field(default_factory=dict)

    @property
    def answer_images(self) -> tuple[AgentImage, ...]:
        """The images of all answers."""
        return tuple(image for one in self.answers.values() for image in one.images)


FindBot = Callable[[str], ConnectedBot | None]
"""Return the connected bot of a channel id, or None."""


class AttachmentFetcher:
    """Fetches attachments. Each step is stored, so that a restart continues where it stopped."""

    def __init__(
        self,
        *,
        transactions: Transactions,
        environment_resolver: EnvironmentResolver,
        file_store: FileStore,
        find: FindBot,
        settings: FileSettings,
        checkpoint: Callable[[str], None],
        transcriber: Transcriber | None = None,
    ) -> None:
        self._transactions = transactions
        self._environment_resolver = environment_resolver
        self._file_store = file_store
        self._find = find
        self._settings = settings
        self._checkpoint = checkpoint
        self._words = AttachmentWords(transactions, file_store, transcriber)
        self._reserved_paths: set[tuple[str, str]] = set()

    async def fetch(
        self, turn: Turn, environment: Environment, approvals: Sequence[Approval] = (), *, has_incoming: bool
    ) -> FetchedAttachments:
        """Fetch a turn's attachments; people get a notice for each one that cannot be fetched.

        Those of its messages, and notes about files, only if it `has_incoming` ones.
        """
        fetched = await self._of_messages(turn, environment) if has_incoming else FetchedAttachments()
        answered = [one for one in approvals if one.files]
        if not answered:
            return fetched
        answers = {one.call: await self._of_answer(turn, environment, one) for one in answered}
        return replace(fetched, answers=answers)

    async def _of_answer(
        self, turn: Turn, environment: Environment, approval: Approval
    ) -> FetchedAttachments:
        """Fetch the files of an answer: those that are shown to the model as images need no workspace."""
        attached = approval.files or ()
        rows = [
            await self._receive_one(
                turn, environment, f"{approval.id} {place}", attachment, in_inbox=not _is_shown(attachment)
            )
            for place, attachment in enumerate(attached)
        ]
        origin = f" of {approval.id}"
        lines = [
            f"[image {row.name}{origin}, {row.type}, follows]"
            if is_model_image(row) and not row.path
            else render_line(row)
            for row in rows
        ]
        words = await self._words.lines(turn, rows, attached)
        return FetchedAttachments(lines=(*lines, *words), images=await self._images(rows, origin))

    async def _of_messages(self, turn: Turn, environment: Environment) -> FetchedAttachments:
        async with self._transactions.database.read() as connection:
            attached = await messages.list_attachments(connection, turn.id)
            notes = await store.list_notes(connection, turn.conversation, turn.id)
        if notes:
            async with self._transactions.database.begin() as connection:
                await store.mark_noted(connection, notes, turn.id)
        rows = [
            await self._receive_one(turn, environment, str(place), attachment)
            for place, attachment in enumerate(attached)
        ]
        if not rows and not notes:
            return FetchedAttachments()
        images = await self._images(rows)
        words = await self._words.lines(turn, rows, attached)
        return FetchedAttachments(
            lines=(*map(render_line, rows), *words, *(f"[{note}]" for note in notes.values())),
            images=images,
        )

    async def _receive_one(
        self,
        turn: Turn,
        environment: Environment,
        place: str,
        attachment: Mapping[str, Any],
        *,
        in_inbox: bool = True,
    ) -> FileRow:
        """Return an attachment's row, fetching it unless an earlier attempt did."""
        identity = sha256(f"in\n{turn.id}\n{place}".encode()).hexdigest()
        async with self._transactions.database.read() as connection:
            row = await store.get_by_identity(connection, turn.conversation, identity)
        if row is None:
            name = media_types.sanitize_name(str(attachment.get("name", "")))
            path = await self._free_path(environment, name) if in_inbox else ""
            row = await self._register(turn, identity, attachment, name=name, path=path)
        if row.state is FileState.ARRIVING:
            await self._fetch_one(turn, environment, row, attachment)
            async with self._transactions.database.read() as connection:
                row = await store.get_by_identity(connection, turn.conversation, identity) or row
        return row

    async def _register(
        self, turn: Turn, identity: str, attachment: Mapping[str, Any], *, name: str, path: str
    ) -> FileRow:
        """Insert an attachment's row with its path in the inbox, before fetching it."""
        row = FileRow(
            id=new_id("fil"),
            account=turn.account,
            conversation=turn.conversation,
            turn=turn.id,
            state=FileState.ARRIVING,
            identity=identity,
            path=path,
            name=name,
            type=str(attachment.get("type") or media_types.BINARY)[:120],
            size=_size(attachment),
            sha256=None,
            created_at=utc_now(),
        )
        async with self._transactions.begin("file.arrive") as tx:
            await store.add(tx.connection, row)
        return row

    async def _free_path(self, environment: Environment, name: str) -> str:
        """Return a free path in the inbox; empty if there is no writable workspace."""
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
            digest = await self._file_store.write_blob(turn.account, content)
            self._checkpoint("file.fetched")
            await self._write_to_inbox(environment, row, kind, content)
        except (NotFetched, StorageFull, DeliveryError, OSError) as error:
            await self._record_failure(turn, row, str(error), is_reported=not attachment.get("earlier"))
            return
        finally:
            self._reserved_paths.discard((environment.workspace or "", row.path))
        self._checkpoint("file.written")
        async with self._transactions.begin("file.arrive") as tx:
            await store.record_fetch_result(
                tx.connection,
                row.id,
                state=FileState.RECEIVED,
                path=row.path,
                content=(kind, len(content), digest),
            )

    async def _write_to_inbox(
        self, environment: Environment, row: FileRow, media_type: str, content: bytes
    ) -> None:
        """Write a file to its path in the inbox, unless it is of use without one. Raises NotFetched."""
        if not row.path:
            if self._words.needs_workspace(media_type, row.type, len(content)):
                raise NotFetched(NO_WORKSPACE)
            return
        try:
            await (await self._environment_resolver.sandbox(environment)).write(row.path, content)
        except (SandboxError, UnsafePath, OSError) as error:
            raise NotFetched(f"it could not be written to the workspace: {error}") from None

    async def _record_failure(self, turn: Turn, row: FileRow, reason: str, *, is_reported: bool) -> None:
        """Record that a file could not be fetched and post a notice if that is due, in one transaction."""
        log.warning("files.fetch_failed", turn=turn.id, why=reason)
        reason = " ".join(reason.split())[:300]
        async with self._transactions.begin("file.arrive") as tx:
            await store.record_fetch_result(tx.connection, row.id, state=FileState.MISSING, reason=reason)
            if is_reported:
                shown = row.name.replace("`", "'")
                text = f"I could not receive `{shown}`: {as_sentence(reason)}"
                await post_notice(tx, turn.conversation, text)

    async def _read_content(self, turn: Turn, row: FileRow, attachment: Mapping[str, Any]) -> bytes:
        """Return an attachment's bytes from the file store or its channel; raises NotFetched."""
        most = self._settings.attachment_bytes
        if row.size > most:
            raise NotFetched(
                f"it has {media_types.render_size(row.size)}; the limit is {media_types.render_size(most)}"
            )
        if not row.path and not self._words.may_need_no_workspace(row.type, row.size):
            raise NotFetched(NO_WORKSPACE)
        if attachment.get("id"):
            return await self._read_upload(turn, str(attachment["id"]))
        if not attachment.get("ref") or not attachment.get("channel"):
            raise NotFetched("it was named but not sent")
        return await self._download(str(attachment["channel"]), str(attachment["ref"]))

    async def _read_upload(self, turn: Turn, file: str) -> bytes:
        row = await self._file_store.get(file)
        content = await self._file_store.read(file) if row and row.account == turn.account else None
        if content is None:
            raise NotFetched("it is no longer stored")
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
        # Several components reconnect bots; polling is simpler than an event from each.
        while (bot := self._find(channel)) is None:
            if asyncio.get_running_loop().time() > deadline:
                raise NotFetched("its channel is not connected")
            await asyncio.sleep(_POLL_SECONDS)
        if ChannelFeature.DOWNLOAD not in bot.features:
            raise NotFetched("files cannot be downloaded from this platform")
        return bot

    async def _read_from_channel(self, bot: ConnectedBot, ref: str) -> bytes:
        content, most = bytearray(), self._settings.attachment_bytes
        async for chunk in bot.sender.download(ref):
            content += chunk
            if len(content) > most:
                raise NotFetched(f"it has more than {media_types.render_size(most)}")
        return bytes(content)

    async def _images(self, rows: Sequence[FileRow], origin: str = "") -> tuple[AgentImage, ...]:
        """Return the images that models accept; the name of one that is in no workspace has its `origin`."""
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
                name = row.path or f"{row.name}{origin}"
                images.append(AgentImage(name=name, media_type=row.type, content=content))
        return tuple(images)


def is_model_image(row: FileRow) -> bool:
    """Return whether a file is an image that is passed to models."""
    received = row.state is FileState.RECEIVED and row.type in media_types.IMAGES
    return received and row.size <= MAX_IMAGE_BYTES


def render_line(row: FileRow) -> str:
    """Return the line about one attachment that the agent reads."""
    if row.state is not FileState.RECEIVED:
        return f"[attachment {row.name} is not here: {row.caption or 'it could not be fetched'}]"
    size = f"{media_types.render_size(row.size)}, {row.type}"
    if not row.path:
        kind = "attached image" if row.type in media_types.IMAGES else "attached"
        return f"[{kind}: {row.name}, {size}; there is no workspace for it]"
    large = row.type in media_types.IMAGES and row.size > MAX_IMAGE_BYTES
    return f"[attached: {row.path}, {size}{'; too large to be passed to the model' if large else ''}]"


def _is_shown(attachment: Mapping[str, Any]) -> bool:
    """Return whether a stored file is an image that is passed to models."""
    return attachment.get("type") in media_types.IMAGES and _size(attachment) <= MAX_IMAGE_BYTES


def _size(attachment: Mapping[str, Any]) -> int:
    size = attachment.get("size")
    return size if isinstance(size, int) and size >= 0 else 0
