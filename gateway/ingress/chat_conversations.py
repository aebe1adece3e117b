"""The conversation of a chat thread, with the route of its replies."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from channels.message import Address, PermissionsChanged, RoomKind
from delivery.broker.port import WorkQueue
from delivery.database.engine import Connection
from delivery.deliveries import destinations
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.ordering import reopen
from delivery.deliveries.route import Route
from delivery.deliveries.transactions import Transaction
from gateway.conversations.submissions.conversation_lookup import create_conversation
from gateway.ingress.channel_context import ChannelContext
from gateway.store.accounts import records
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import ChatThread

log = structlog.get_logger(__name__)


async def get_thread(tx: Transaction, context: ChannelContext, address: Address) -> ChatThread | None:
    """Return a chat thread if it has a conversation; its chat is alive, because a message came from it.

    A chat that was dead gets what it has missed, and what waits for long is tried at once.
    """
    account = context.record.account
    found = await conversations.get_thread(
        tx.connection, account, address.key, destination=address.destination
    )
    if found is None or found.is_silent:
        await reopen_chat(tx, account, address)
    return found


async def reopen_chat(tx: Transaction, account: str, address: Address) -> None:
    """Note that a chat accepts messages; it gets what it has missed, and what waits for long."""
    was_dead = await reopen(tx.connection, account, address.destination)
    if await destinations.end_waits(tx.connection, address.destination) or was_dead:
        tx.wake(WorkQueue.DELIVER, address.destination, account=account)


async def list_waiting(connection: Connection, change: PermissionsChanged) -> set[str]:
    """Return the destinations where permissions changed and something waits for long, or that are dead.

    Where the change is one of places that have `extras`, such as a server's roles, a dead chat stays dead.
    """
    targets = await destinations.list_waiting_targets(connection, change.channel)
    addresses = [one for one in map(Address.decode, targets) if one.room.startswith(change.room_prefix)]
    waiting = {one.destination for one in addresses if change.extras.items() <= one.extras.items()}
    dead = [] if change.extras else await destinations.list_dead(connection, change.channel)
    return waiting | {one for one in dead if Address.room_of(one).startswith(change.room_prefix)}


async def end_waits(tx: Transaction, account: str, found: Iterable[str]) -> None:
    """Try again at once what waits for long at these destinations, and what dead ones have missed."""
    for destination in sorted(found):
        await reopen(tx.connection, account, destination)
        await destinations.end_waits(tx.connection, destination)
        tx.wake(WorkQueue.DELIVER, destination, account=account)


async def get_or_create_thread(
    tx: Transaction, context: ChannelContext, address: Address, room: RoomKind
) -> ChatThread:
    """Return a chat thread; creates its conversation if there is none."""
    account, direct = context.record.account, room is RoomKind.DIRECT
    found = await get_thread(tx, context, address)
    if found is not None:
        if found.conversation.direct is not direct:
            await conversations.set_direct(tx.connection, found.conversation.id, direct=direct)
        await _follow(tx, found, address)
        return found
    opened = await create_conversation(
        tx,
        account=account,
        agent=await _agent_for_room(tx, context, address.room),
        channel=context.record.id,
        address=address.encode(),
        address_key=address.key,
        direct=direct,
    )
    await delivery_store.add_route(
        tx.connection, Route.to_chat(account=account, conversation=opened.id, address=address)
    )
    return ChatThread(conversation=opened, is_idle=True, is_silent=False, has_unseen=True)


async def _follow(tx: Transaction, thread: ChatThread, address: Address) -> None:
    """Answer from now on by the address of the newest message, such as below another comment.

    While turns are open nothing changes: what they show already is edited by the address that they have.
    """
    conversation, new = thread.conversation, address.encode()
    if not thread.is_idle or conversation.address is None or conversation.address == new:
        return
    await conversations.change_address(tx.connection, conversation.id, address=new, address_key=address.key)
    await delivery_store.replace_target(tx.connection, conversation.id, old=conversation.address, new=new)


async def _agent_for_room(tx: Transaction, context: ChannelContext, room: str) -> str:
    """Return the agent of a room: the one it names if that exists, else the channel's."""
    wanted = context.agent_in(room)
    if wanted is None:
        return await _current_agent(tx, context)
    found = await records.get(tx.connection, context.record.account, "agent", wanted)
    if found is None:
        log.warning("ingress.agent_not_found", channel=context.record.name, room=room, agent=wanted)
        return await _current_agent(tx, context)
    return found.id


async def _current_agent(tx: Transaction, context: ChannelContext) -> str:
    """Return the agent that the stored channel names; the context of a running channel is updated later."""
    stored = await records.get_by_id(tx.connection, context.record.id)
    return str(stored.config.get("agent", context.agent)) if stored else context.agent
