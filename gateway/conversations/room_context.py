"""What the model gets of the messages before its own: of the room, the quoted one, and the thread's root.

Messages of a room that do not address the bot are kept in `room_messages`. The next turn of the
conversation gets the newest of them once: its context is stored with the turn, and the conversation
remembers the last row. The first context of a conversation has what its thread is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from channels.message import Address, Attachment, Message, MessageDeleted, QuotedMessage
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from gateway.conversations.supplied_history import ADDED
from gateway.store.conversations import conversations, handover, messages, room_messages
from gateway.store.conversations.conversations import ChatThread, Conversation
from gateway.store.conversations.handover import HandoverMessage
from gateway.store.conversations.room_messages import BOT, ROOM_MESSAGE_AGE, RoomMessage

MAX_TEXT_BYTES = 4_000
"""Bytes that are kept of one message."""

MAX_NAME = 200
"""Characters that are kept of a name or an id."""

MAX_EARLIER_FILES = 5
"""Files of the earlier messages of a thread that a turn gets, the newest of them."""

CUT = " […]"
ROOT = "root"
"""The kind of the message that says what a thread is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLimits:
    """How many earlier messages a turn gets, and how many bytes they and the quoted one have together."""

    messages: int = 20
    size: int = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """The context of a turn, and the position of the last message of the room that it contains.

    `files` are those of the quoted message and of the earlier messages of its thread.
    """

    quoted: Mapping[str, Any] | None = None
    earlier: Sequence[Mapping[str, Any]] = ()
    files: Sequence[Mapping[str, Any]] = ()
    position: int | None = None

    def encode(self) -> dict[str, Any] | None:
        """Return the context as it is stored with the turn; None if there is none."""
        found: dict[str, Any] = {}
        if self.quoted is not None:
            found["quoted"] = dict(self.quoted)
        if self.earlier:
            found["earlier"] = [dict(one) for one in self.earlier]
        return found or None


def stored_files(files: Iterable[Attachment], address: Address) -> list[dict[str, Any]]:
    """Return a message's files as they are stored, with the channel that downloads them (pure)."""
    return [
        {
            "name": one.name,
            "type": one.media_type,
            "size": one.size,
            "ref": one.ref,
            "channel": address.channel,
        }
        for one in files
    ]


def merge_edited_files(stored: Sequence[Mapping[str, Any]], message: Message) -> list[Mapping[str, Any]]:
    """Return the files that are stored with a message after its edit (pure).

    A new file takes the place of the message's only one, or of that of the same name: the edit of an album's
    message has the file of this message alone. Files of messages that it quotes or follows stay.
    """
    known = [_identity(one) for one in stored]
    new = [one for one in stored_files(message.attachments, message.address) if _identity(one) not in known]
    if not new:
        return list(stored)
    quoted = stored_files(message.quoted.attachments if message.quoted else (), message.address)
    others = [_identity(one) for one in quoted]
    own = [one for one in stored if not one.get("earlier") and _identity(one) not in others]
    names = {one["name"] for one in new}
    replaced = own if len(own) == 1 else [one for one in own if one["name"] in names]
    return [*new, *(one for one in stored if one not in replaced)]


def _identity(file: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what tells files apart; platforms name the same file by other references."""
    return tuple(file.get(name) for name in ("name", "type", "size"))


def opens_thread(message: Message) -> bool:
    """Return whether a message is in no thread, or is the first of its own (pure)."""
    return not message.address.thread or message.address.thread == message.platform_id


async def keep(connection: Connection, account: str, message: Message, *, kind: str = "message") -> None:
    """Keep a message of a room for the next turn there; its text and names are cut."""
    kind = BOT if message.author.is_bot and kind == "message" else kind
    kept = RoomMessage(
        thread=_cut_name(message.address.thread or ""),
        platform_id=_cut_name(message.platform_id),
        kind=kind,
        author=_cut_name(message.author.id),
        name=_cut_name(message.author.name),
        text=cut(_text_of(message), MAX_TEXT_BYTES),
        sent_at=message.sent_at.astimezone(UTC),
        files=stored_files(message.attachments, message.address) or None,
    )
    await room_messages.add(connection, account, message.address.destination, message.key, kept)


async def keep_edit(connection: Connection, account: str, message: Message) -> None:
    """Change a kept message; a conversation that got it before gets the change as well.

    It gets none of another bot's message: bots write their answers by many changes.
    """
    found = await room_messages.find(connection, message.address.destination, message.platform_id)
    if found is None:
        return
    position, kept = found
    text = cut(_text_of(message), MAX_TEXT_BYTES)
    if kept.author != message.author.id or kept.text == text:
        return
    await room_messages.set_text(connection, position, text)
    if kept.kind == BOT:
        return
    conversation = await conversations.get_by_address(connection, account, message.address.key)
    if conversation is not None and await _has_seen(connection, conversation, position):
        await keep(connection, account, message, kind="edited")


async def drop_deleted(
    connection: Connection, account: str, deletion: MessageDeleted, conversation: Conversation | None
) -> None:
    """Delete a kept message; a conversation that got it before gets to know that it was deleted."""
    found = await room_messages.find(connection, deletion.address.destination, deletion.platform_id)
    if found is None:
        return
    position, kept = found
    await room_messages.remove(connection, position)
    if conversation is not None and await _has_seen(connection, conversation, position):
        await keep_deletion(connection, account, deletion, author=kept.author, name=kept.name)


async def keep_deletion(
    connection: Connection, account: str, deletion: MessageDeleted, *, author: str, name: str = ""
) -> None:
    """Keep for the next turn that a message was deleted, without its text."""
    kept = RoomMessage(
        thread=_cut_name(deletion.address.thread or ""),
        platform_id=_cut_name(deletion.platform_id),
        kind="deleted",
        author=author,
        name=name,
        text="",
        sent_at=utc_now(),
    )
    await room_messages.add(connection, account, deletion.address.destination, deletion.key, kept)


async def collect(
    connection: Connection, thread: ChatThread, message: Message, limits: ContextLimits
) -> TurnContext:
    """Return what a message's turn gets as context: what it quotes, the root, and the newest ones before."""
    if not limits.messages:
        return TurnContext()
    quoted = _quoted(message.quoted, limits.size)
    left = limits.size - size_of(quoted or {})
    root = _quoted(await _unseen_root(connection, thread.conversation, message), left)
    found = await _list_earlier(connection, thread.conversation, message, limits) if thread.has_unseen else []
    shown_already = {root["message"] if root else None, *(one.platform_id for one in message.includes)}
    rows = [one for _position, one in found if one.platform_id not in shown_already]
    earlier = _newest_within(rows, left - size_of(root or {}))
    files = [*(message.quoted.attachments if quoted and message.quoted else ())]
    shown = rows[len(rows) - len(earlier) :]
    return TurnContext(
        quoted=quoted,
        earlier=[*([{"kind": ROOT, **root}] if root else []), *earlier],
        files=_merge_files(stored_files(files, message.address), _files_of(message.address, shown)),
        position=found[-1][0] if found else 0 if root else None,
    )


async def mark_seen(
    connection: Connection, conversation: Conversation, context: TurnContext, message: Message | None = None
) -> None:
    """Record that a turn of the conversation got this context, and what its message includes.

    What it includes is kept for the conversations of other threads, before it comes by itself.
    """
    for one in message.includes if message is not None else ():
        await keep(connection, conversation.account, one)
    position = context.position
    if message is not None and message.includes:
        position = await room_messages.get_newest(connection, message.address.destination)
    if position is not None:
        await room_messages.set_seen(connection, conversation.id, position)


def merge_contexts(
    first: Mapping[str, Any] | None, second: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the context of a turn that answers two messages (pure)."""
    if first is None or second is None:
        return dict(first or second or {}) or None
    earlier = [*first.get("earlier", ()), *second.get("earlier", ())]
    if "quoted" in first and "quoted" in second:
        earlier.append({**second["quoted"], "kind": "quoted"})
    merged = {
        "quoted": first.get("quoted") or second.get("quoted"),
        "earlier": earlier,
        ADDED: [*first.get(ADDED, ()), *second.get(ADDED, ())],
    }
    return {key: value for key, value in merged.items() if value}


def build_context(said: Sequence[HandoverMessage], size: int = ContextLimits().size) -> dict[str, Any] | None:
    """Return the context of what was said while a person handled the conversation (pure)."""
    chosen: list[dict[str, Any]] = []
    for one in reversed(said):
        kind = {"kind": "operator"} if one.role == "operator" else {}
        shown = {**kind, "name": _cut_name(one.author), "time": _time(one.created_at)}
        shown["text"] = cut(one.text, MAX_TEXT_BYTES)
        size -= size_of(shown)
        if size < 0:
            break
        chosen.append(shown)
    return {"earlier": chosen[::-1]} if chosen else None


async def take_carried(
    connection: Connection, conversation: Conversation, context: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return a turn's context with what was said while a person handled the conversation, once."""
    if conversation.carried_context is None or conversation.handover_by is not None:
        return dict(context) if context else None
    await handover.clear_carried(connection, conversation.id)
    return merge_contexts(conversation.carried_context, context)


def cut(text: str, size: int) -> str:
    """Return a text of at most this many bytes of UTF-8; the end of a longer one is left out (pure)."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= size:
        return text
    kept = max(0, size - len(CUT.encode()))
    return encoded[:kept].decode("utf-8", "ignore") + CUT


def size_of(message: Mapping[str, Any]) -> int:
    """Return the bytes of a message in a context (pure)."""
    return sum(len(str(value).encode("utf-8", "replace")) for value in message.values())


async def _list_earlier(
    connection: Connection,
    conversation: Conversation,
    message: Message,
    limits: ContextLimits,
) -> list[tuple[int, RoomMessage]]:
    address = message.address
    return await room_messages.list_unseen(
        connection,
        address.destination,
        message.above or address.thread or "",
        opens_thread=opens_thread(message),
        conversation=conversation.id,
        since=utc_now() - ROOM_MESSAGE_AGE,
        limit=limits.messages,
    )


async def _unseen_root(
    connection: Connection, conversation: Conversation, message: Message
) -> QuotedMessage | None:
    """Return what a message's thread is about, None if the conversation has got it or any context."""
    root = message.root
    if root is None or await room_messages.get_seen(connection, conversation.id) is not None:
        return None
    known = await messages.get_by_platform_id(connection, message.address, root.platform_id)
    return None if known is not None and known.conversation == conversation.id else root


def _newest_within(messages: Sequence[RoomMessage], size: int) -> list[dict[str, Any]]:
    """Return the newest messages that fit a size together, oldest first; the first of them is cut (pure)."""
    chosen: list[dict[str, Any]] = []
    for one in reversed(messages):
        shown = _shown(one)
        frame = size_of({**shown, "text": ""})
        if size <= frame + len(CUT.encode()):
            break
        shown["text"] = cut(one.text, size - frame)
        size -= size_of(shown)
        chosen.append(shown)
    return chosen[::-1]


def _files_of(address: Address, earlier: Sequence[RoomMessage]) -> list[Mapping[str, Any]]:
    """Return the newest files of a thread's earlier messages; none outside of a thread (pure).

    `earlier`: nobody gets a notice if the file cannot be fetched.
    """
    thread = address.thread
    in_thread = (one for one in earlier if thread and thread in {one.thread, one.platform_id})
    files = [file for one in in_thread for file in one.files or ()][-MAX_EARLIER_FILES:]
    return [{**file, "earlier": True} for file in files]


def _merge_files(*groups: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return files without the repetitions: people may reply to a message of their thread (pure)."""
    return list({str(file["ref"]): file for files in reversed(groups) for file in files}.values())


async def _has_seen(connection: Connection, conversation: Conversation, position: int) -> bool:
    return (await room_messages.get_seen(connection, conversation.id) or 0) >= position


def _shown(message: RoomMessage) -> dict[str, Any]:
    changes = {"message": {}, BOT: {"bot": "true"}}
    return {
        **changes.get(message.kind, {"kind": message.kind}),
        "name": message.name,
        "id": message.author,
        "time": _time(message.sent_at),
        "message": message.platform_id,
        "text": message.text,
    }


def _quoted(quoted: QuotedMessage | None, size: int) -> dict[str, Any] | None:
    if quoted is None or not (quoted.text or quoted.platform_id or quoted.attachments):
        return None
    shown = {"name": _cut_name(quoted.author.name), "id": _cut_name(quoted.author.id)}
    if quoted.author.is_bot:
        shown["bot"] = "true"
    shown["message"] = _cut_name(quoted.platform_id)
    return {**shown, "text": cut(_text_of(quoted), min(MAX_TEXT_BYTES, max(0, size - size_of(shown))))}


def _text_of(message: Message | QuotedMessage) -> str:
    files = [f"[file: {one.name}]" for one in message.attachments]
    return "\n".join(part for part in (message.text, *files) if part)


def _cut_name(text: str) -> str:
    return text[:MAX_NAME]


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
