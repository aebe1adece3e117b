"""The names of the people who wrote messages: an author is stored as the platform's id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from channels.message import Address
from delivery.database.engine import Connection
from gateway.accounts.persons import platform_name, platform_of
from gateway.store.accounts import persons as store
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.listing import ConversationView
from gateway.store.conversations.previews import Preview, read_previews

AuthorOn = tuple[str, str]
"""A platform, as `platform_name` returns it, and the id of an author there."""


async def read_author_names(
    connection: Connection, account: str, authors: Iterable[AuthorOn]
) -> Mapping[AuthorOn, str]:
    """Return the names of authors on platforms, without those that are not known by a name."""
    wanted = {f"{platform}:{author}": (platform, author) for platform, author in authors if author}
    names = await store.get_names(connection, account, wanted)
    return {wanted[identity]: name for identity, name in names.items()}


async def read_names_in(
    connection: Connection, conversation: Conversation, authors: Iterable[str]
) -> Mapping[str, str]:
    """Return the names of authors in a conversation by their ids; outside of chats there are none."""
    platform = await platform_of(connection, conversation)
    if platform is None:
        return {}
    wanted = [(platform, author) for author in authors]
    names = await read_author_names(connection, conversation.account, wanted)
    return {author: name for (_platform, author), name in names.items()}


async def read_named_previews(
    connection: Connection, account: str, views: Sequence[ConversationView]
) -> Mapping[str, Preview]:
    """Return the previews of an account's conversations by their ids, with the names of their people."""
    previews = await read_previews(connection, [one.id for one in views])
    platforms = {one.id: platform for one in views if (platform := _platform_of(one)) is not None}
    wanted = [
        (platforms[conversation], author)
        for conversation, preview in previews.items()
        if conversation in platforms
        for author in preview.people
    ]
    names = await read_author_names(connection, account, wanted)
    for conversation, preview in previews.items():
        on = platforms.get(conversation, "")
        preview.names = {one: names[on, one] for one in preview.people if (on, one) in names}
    return previews


async def name_rooms(
    connection: Connection, account: str, views: Sequence[ConversationView]
) -> list[ConversationView]:
    """Return conversations with the names of rooms that have a person's id, as direct chats may have."""
    rooms = {
        one.id: (platform, Address.decode(one.conversation.address).room)
        for one in views
        if one.conversation.address is not None and (platform := _platform_of(one)) is not None
    }
    names = await read_author_names(connection, account, rooms.values())
    return [replace(one, room_name=names.get(rooms[one.id])) if one.id in rooms else one for one in views]


def _platform_of(view: ConversationView) -> str | None:
    if view.channel_kind is None or view.conversation.address is None:
        return view.channel_kind
    return platform_name(view.channel_kind, Address.decode(view.conversation.address))
