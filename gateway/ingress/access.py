"""Authorization of senders: who may talk to a bot, decided by immutable ids for every kind of update."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from channels.message import (
    Address,
    Author,
    ButtonPress,
    Command,
    Message,
    MessageDeleted,
    Reaction,
    RoomChange,
    RoomKind,
    Update,
)
from delivery.database.engine import Connection
from delivery.deliveries.queries import has_answered
from gateway.accounts.persons import ids_in_workspace, is_listed
from gateway.conversations.room_context import opens_thread
from gateway.ingress.channel_context import ChannelContext
from gateway.store.conversations import conversations, pairings, room_messages

PersonalUpdate = Message | Command | ButtonPress | Reaction
"""What a person does."""


class AdmissionResult(StrEnum):
    """The decision about one update."""

    ADMITTED = "admitted"
    UNKNOWN_SENDER = "unknown_sender"
    """Not paired with the bot; gets a pairing code."""
    IGNORED = "ignored"


def pairing_subject(author: Author, room: RoomKind, address: Address) -> str:
    """Return the subject of a pairing: a pairing from a direct chat is not valid in a group.

    In an app of many Slack workspaces it is valid in one workspace, or in one organisation.
    """
    person = (ids_in_workspace(author.id, address) or [author.id])[-1]
    return person if room is RoomKind.DIRECT else f"{person}@{address.room}"


async def _is_paired(connection: Connection, update: PersonalUpdate, context: ChannelContext) -> bool:
    """Return whether the author of an update is paired; earlier pairings name no workspace."""
    unplaced = replace(update.address, extras={})
    subjects = [pairing_subject(update.author, update.room, one) for one in (update.address, unplaced)]
    for subject in dict.fromkeys(subjects):
        if await pairings.is_paired(connection, context.record.id, subject):
            return True
    return False


async def authorize(connection: Connection, update: Update, context: ChannelContext) -> AdmissionResult:
    """Decide about one update: admitted are listed ids, `*` and paired persons, never bots or ourselves.

    Changes of rooms and deletions come from the platform itself and are always admitted.
    """
    if isinstance(update, RoomChange | MessageDeleted):
        return AdmissionResult.ADMITTED
    if is_ignored(update.author, update.address, context):
        return AdmissionResult.IGNORED
    if "*" in context.allow or is_listed(context.allow, update.author.id, update.address):
        return AdmissionResult.ADMITTED
    if await _is_paired(connection, update, context):
        return AdmissionResult.ADMITTED
    return AdmissionResult.UNKNOWN_SENDER


def is_ignored(author: Author, address: Address, context: ChannelContext) -> bool:
    """Return whether a sender is ignored regardless of pairings (pure)."""
    if author.is_bot or not author.id or author.id == context.bot_user_id:
        return True
    is_open = "*" in context.allow or "pairing" in context.allow
    return not is_open and not is_listed(context.allow, author.id, address)


async def is_known_person(connection: Connection, context: ChannelContext, reaction: Reaction) -> bool:
    """Return whether a reaction is certainly a person's: bots are not named in settings and not paired."""
    if not reaction.may_be_bot or is_listed(context.allow, reaction.author.id, reaction.address):
        return True
    return await _is_paired(connection, reaction, context)


def may_be_context(message: Message, context: ChannelContext) -> bool:
    """Return whether a message that is not for the bot may be kept for the turns of its room (pure).

    Of other bots only those are that open a thread, because people ask for something below them, and those in
    a thread about something else than a message, such as the report of tests in a pull request.
    """
    author = message.author
    if not author.is_bot:
        return not is_ignored(author, message.address, context)
    if author.id in {"", context.bot_user_id} or message.room is not RoomKind.GROUP or not context.allow:
        return False
    return opens_thread(message) or message.root is not None


def is_addressed_to_bot(message: Message, groups: str) -> bool:
    """Return whether a message in a room is for the bot: `mention`, `always`, or `command` only."""
    if message.room is RoomKind.DIRECT or groups == "always":
        return True
    if groups == "command":
        return message.text.startswith(("/", "!"))
    return message.mentions_bot


async def is_room_known(connection: Connection, context: ChannelContext, message: Message) -> bool:
    """Return whether a person who may use the bot is in a room: the author, or others before.

    Below the message of another bot, any of them may ask for something.
    """
    if message.author.is_bot:
        if "*" in context.allow or await has_answered(connection, message.address.destination):
            return True
    elif await authorize(connection, message, context) is AdmissionResult.ADMITTED:
        return True
    if await room_messages.is_known(connection, message.address.destination):
        return True
    account, key = context.record.account, message.address.key
    return await conversations.get_by_address(connection, account, key) is not None
