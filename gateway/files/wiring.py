"""Filing: files both ways put together, and what the web layer and the chat sink need of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from delivery.chat.file_sink import FileSink
from delivery.chat.sink import ConnectedBot
from delivery.database.clock import utc_now
from delivery.deliveries.part import FilePart
from delivery.deliveries.transactions import Transactions
from gateway.config.setting_types import FileSettings
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.attachments import AttachmentFetcher
from gateway.files.blob_store import BlobStore, DirectoryBlobStore
from gateway.files.collection import FileCollector
from gateway.files.file_store import FileStore
from gateway.files.nats_blob_store import NatsBlobStore
from gateway.files.signed_links import PURPOSE, SignedLinks
from gateway.infra.backing_services import BackingServices
from gateway.store.conversations import files as store


@dataclass(frozen=True, slots=True, kw_only=True)
class FileServices:
    """The doors to files."""

    file_store: FileStore
    links: SignedLinks
    collector: FileCollector
    attachments: AttachmentFetcher
    sink: FileSink
    settings: FileSettings


def open_file_services(
    backing: BackingServices,
    transactions: Transactions,
    environment_resolver: EnvironmentResolver,
    get_bot: Callable[[str], ConnectedBot | None],
) -> FileServices:
    """Return files both ways. One gateway alone keeps bytes in its directory, replicas in their broker."""
    settings, checkpoint = backing.settings, backing.fault_points.checkpoint
    shelf = FileStore(
        backing.database, _blob_store(backing), retention=timedelta(seconds=settings.files.retention)
    )
    links = SignedLinks(
        keys=backing.vault.keys_for(PURPOSE),
        public_url=settings.public_url,
        lifetime=timedelta(seconds=settings.files.link_lifetime),
    )
    return FileServices(
        file_store=shelf,
        links=links,
        collector=FileCollector(
            transactions=transactions,
            environment_resolver=environment_resolver,
            file_store=shelf,
            links=links,
            settings=settings.files,
            checkpoint=checkpoint,
        ),
        attachments=AttachmentFetcher(
            transactions=transactions,
            environment_resolver=environment_resolver,
            file_store=shelf,
            find=get_bot,
            settings=settings.files,
            checkpoint=checkpoint,
        ),
        sink=FileSink(
            read_content=shelf.read,
            create_link=lambda file: _public_link(links, file),
            on_rejected=_note_refusal(transactions),
        ),
        settings=settings.files,
    )


def _blob_store(backing: BackingServices) -> BlobStore:
    if backing.settings.nats_url is not None:
        return NatsBlobStore(backing.nats)
    return DirectoryBlobStore(backing.settings.data_dir / "files")


def _public_link(links: SignedLinks, file: FilePart) -> str | None:
    """Return a link for people in a chat, who can only use an absolute one."""
    if not links.public_url:
        return None
    return links.create(file.id, file.name, expires=utc_now() + links.lifetime)


def _note_refusal(transactions: Transactions) -> Callable[[str, str], Awaitable[None]]:
    async def note(file: str, why: str) -> None:
        async with transactions.begin("file.note") as entry:
            row = await store.get_by_id(entry.connection, file)
            if row is not None:
                said = f"{row.path or row.name} could not be attached in the chat: {why}"
                await store.add_note(entry.connection, file, said)

    return note
