"""Construction of the file services: storage, collection, attachments, links and the chat file sink."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog

from delivery.chat.file_sink import FileSink, ReadContent, Speak
from delivery.chat.sink import ConnectedBot
from delivery.database.clock import utc_now
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.deliveries.part import FilePart
from delivery.deliveries.rendering import SpeechFormat
from delivery.deliveries.transactions import Transactions
from gateway.config.file_settings import FileSettings, SpeechSettings
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.attachments import AttachmentFetcher
from gateway.files.collection import FileCollector
from gateway.files.signed_links import PURPOSE, SignedLinks
from gateway.files.speech import NotSpoken, Speaker
from gateway.files.storage.blob_store import BlobStore, DirectoryBlobStore
from gateway.files.storage.file_store import FileStore
from gateway.files.storage.nats_blob_store import NatsBlobStore
from gateway.files.storage.storage_quota import StorageQuota, count_usage, read_limit
from gateway.files.transcription import Transcriber
from gateway.files.turn_trees import TurnTrees
from gateway.infra.backing_services import BackingServices
from gateway.store.conversations import files as store
from gateway.store.conversations import messages

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileServices:
    """The services for files."""

    file_store: FileStore
    links: SignedLinks
    collector: FileCollector
    attachments: AttachmentFetcher
    sink: FileSink
    settings: FileSettings
    quota: StorageQuota
    read_content: ReadContent
    """Returns a stored file by its id, or the whole text of a message by the message's."""


def open_file_services(
    backing: BackingServices,
    transactions: Transactions,
    environment_resolver: EnvironmentResolver,
    get_bot: Callable[[str], ConnectedBot | None],
) -> FileServices:
    """Return the file services. Blobs are stored in the data directory, or with `nats_url` in NATS."""
    settings, checkpoint = backing.settings, backing.fault_points.checkpoint
    quota = StorageQuota(
        count_usage(backing.database, environment_resolver.workspaces),
        backing.metrics,
        limit=settings.files.account_bytes,
        read_limit=read_limit(backing.database),
    )
    file_store = FileStore(
        backing.database,
        _blob_store(backing),
        retention=timedelta(seconds=settings.files.retention),
        quota=quota,
    )
    read_content = _content_reader(backing.database, file_store)
    links = SignedLinks(
        keys=backing.vault.keys_for(PURPOSE),
        public_url=settings.public_url,
        lifetime=timedelta(seconds=settings.files.link_lifetime),
    )
    return FileServices(
        file_store=file_store,
        links=links,
        collector=FileCollector(
            transactions=transactions,
            environment_resolver=environment_resolver,
            file_store=file_store,
            links=links,
            trees=TurnTrees(
                backing.database,
                environment_resolver.workspaces,
                file_store,
                limit=settings.files.turn_bytes,
            ),
            settings=settings.files,
            checkpoint=checkpoint,
        ),
        attachments=AttachmentFetcher(
            transactions=transactions,
            environment_resolver=environment_resolver,
            file_store=file_store,
            find=get_bot,
            settings=settings.files,
            checkpoint=checkpoint,
            transcriber=Transcriber(settings.transcription),
        ),
        sink=FileSink(
            read_content=read_content,
            create_link=lambda file: _public_link(links, file),
            on_rejected=_record_rejection(transactions),
            speak=_message_speaker(backing.database, Speaker(settings.speech)),
        ),
        settings=settings.files,
        quota=quota,
        read_content=read_content,
    )


def _blob_store(backing: BackingServices) -> BlobStore:
    if backing.settings.nats_url is not None:
        return NatsBlobStore(backing.nats)
    return DirectoryBlobStore(backing.settings.data_dir / "files")


def _content_reader(database: Database, file_store: FileStore) -> ReadContent:
    """Return the function that reads a file by its id, or the whole text of a message by the message's."""

    async def read(file_id: str) -> bytes | None:
        if not file_id.startswith("msg_"):
            return await file_store.read(file_id)
        async with database.read() as connection:
            message = await messages.get_by_id(connection, file_id)
        return message.text.encode() if message is not None else None

    return read


def _message_speaker(database: Database, speaker: Speaker) -> Speak:
    """Return the function that makes the voice file of a message; a failure is logged."""

    async def speak(message: str) -> bytes | None:
        try:
            async with database.read() as connection:
                found = await messages.get_by_id(connection, message)
            return await speaker.speak(found.text) if found is not None else None
        except (NotSpoken, DatabaseUnavailable) as error:
            log.warning("files.speech_failed", message=message, error=str(error))
            return None

    return speak


def speech_format(settings: SpeechSettings) -> SpeechFormat | None:
    """Return the format in which answers are spoken; None: they are not."""
    if not settings.is_enabled:
        return None
    suffix = "ogg" if settings.format == "opus" else settings.format
    kind = {"mp3": "mpeg", "opus": "ogg"}.get(settings.format, settings.format)
    return SpeechFormat(suffix=suffix, media_type=f"audio/{kind}")


def _public_link(links: SignedLinks, file: FilePart) -> str | None:
    """Return an absolute link for a chat; None if `public_url` is not set."""
    if not links.public_url:
        return None
    return links.create(file.id, file.name, expires=utc_now() + links.lifetime)


def _record_rejection(transactions: Transactions) -> Callable[[str, str], Awaitable[None]]:
    async def record(file: str, why: str) -> None:
        async with transactions.begin("file.note") as tx:
            row = await store.get_by_id(tx.connection, file)
            if row is not None:
                note_text = f"{row.path or row.name} could not be attached in the chat: {why}"
                await store.add_note(tx.connection, file, note_text)

    return record
