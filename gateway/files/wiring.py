"""Filing: files both ways put together, and what the web layer and the chat sink need of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from delivery.chat.file_sink import FileSink
from delivery.chat.sink import Bot
from delivery.database.clock import utc_now
from delivery.deliveries.part import Enclosed
from delivery.deliveries.transactions import Ledger
from gateway.config.setting_types import FileSettings
from gateway.environments.resolver import Workbench
from gateway.files.attachments import Incoming
from gateway.files.blob_store import Depot, DirectoryDepot
from gateway.files.collection import Outgoing
from gateway.files.file_store import Shelf
from gateway.files.nats_blob_store import SharedDepot
from gateway.files.signed_links import PURPOSE, Links
from gateway.infra.backing_services import Ground
from gateway.store.conversations import files as store


@dataclass(frozen=True, slots=True, kw_only=True)
class Filing:
    """The doors to files."""

    shelf: Shelf
    links: Links
    outgoing: Outgoing
    incoming: Incoming
    sink: FileSink
    settings: FileSettings


def open_filing(
    ground: Ground, ledger: Ledger, workbench: Workbench, find: Callable[[str], Bot | None]
) -> Filing:
    """Return files both ways. One gateway alone keeps bytes in its directory, replicas in their broker."""
    settings, checkpoint = ground.settings, ground.faults.checkpoint
    shelf = Shelf(ground.database, _depot(ground), kept=timedelta(seconds=settings.files.kept))
    links = Links(
        keys=ground.vault.keys_for(PURPOSE),
        public_url=settings.public_url,
        lifetime=timedelta(seconds=settings.files.link_lifetime),
    )
    return Filing(
        shelf=shelf,
        links=links,
        outgoing=Outgoing(
            ledger=ledger,
            workbench=workbench,
            shelf=shelf,
            links=links,
            settings=settings.files,
            checkpoint=checkpoint,
        ),
        incoming=Incoming(
            ledger=ledger,
            workbench=workbench,
            shelf=shelf,
            find=find,
            settings=settings.files,
            checkpoint=checkpoint,
        ),
        sink=FileSink(content=shelf.content, link=lambda file: _public(links, file), refused=_noting(ledger)),
        settings=settings.files,
    )


def _depot(ground: Ground) -> Depot:
    if ground.settings.nats_url is not None:
        return SharedDepot(ground.link)
    return DirectoryDepot(ground.settings.data_dir / "files")


def _public(links: Links, file: Enclosed) -> str | None:
    """Return a link for people in a chat, who can only use an absolute one."""
    if not links.public_url:
        return None
    return links.to(file.id, file.name, expires=utc_now() + links.lifetime)


def _noting(ledger: Ledger) -> Callable[[str, str], Awaitable[None]]:
    async def note(file: str, why: str) -> None:
        async with ledger.entry("file.note") as entry:
            row = await store.by_id(entry.connection, file)
            if row is not None:
                said = f"{row.path or row.name} could not be attached in the chat: {why}"
                await store.add_note(entry.connection, file, said)

    return note
