"""Rooms that get a new id at their platform: a group that becomes a supergroup, a renamed repository."""

from __future__ import annotations

from dataclasses import replace

from channels.message import Address, RoomMigrated
from delivery.database.engine import Connection
from delivery.deliveries import routes, store
from gateway.store.conversations import conversations, room_messages


async def move_room(connection: Connection, account: str, migration: RoomMigrated) -> None:
    """Move a room's conversations, those of its threads too, its routes and open deliveries to its new id."""
    old, new = migration.old, migration.new
    for one in await conversations.list_in_room(connection, account, channel=old.channel, room=old.room):
        address = replace(Address.decode(one.address), room=new.room)
        # what was said under the new id before this update has a conversation, which stays the open one
        is_taken = await conversations.get_by_address(connection, account, address.key) is not None
        key = None if is_taken or one.address_key is None else address.key
        await conversations.change_address(connection, one.id, address=address.encode(), address_key=key)
    await routes.move_room(connection, old=old, room=new.room)
    await store.move_room(connection, old=old, room=new.room)
    await room_messages.move(connection, old=old.destination, new=new.destination)
