"""Rooms that get a new id at their platform, as Telegram's groups that become supergroups."""

from __future__ import annotations

from channels.message import RoomMigrated
from delivery.database.engine import Connection
from delivery.deliveries import routes, store
from delivery.deliveries.route import RouteKind
from gateway.store.conversations import conversations


async def move_room(connection: Connection, account: str, migration: RoomMigrated) -> None:
    """Move a room's conversation, routes and open deliveries to its new id."""
    found = await conversations.get_by_address(connection, account, migration.old.key)
    if found is None:
        return
    old, new = migration.old.encode(), migration.new.encode()
    await conversations.change_address(connection, found.id, address=new, address_key=migration.new.key)
    await routes.move_routes(connection, kind=RouteKind.CHAT, old=old, new=new)
    await store.move(connection, old=migration.old, new=migration.new)
