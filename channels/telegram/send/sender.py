"""Send to Telegram: messages, edits, previews, reactions and files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from channels.errors import Rejected, Undeliverable
from channels.inbox.calls import limited
from channels.inbox.text import replace_surrogates
from channels.message import (
    Address,
    ButtonPress,
    Command,
    DraftText,
    File,
    Message,
    Reply,
    SentMessage,
    StatusReaction,
)
from channels.port import Sender
from channels.telegram.api import Api, parse_sent
from channels.telegram.errors import is_about_markup
from channels.telegram.send import markup
from channels.telegram.send.drafts import DraftPreviews
from channels.telegram.send.reactions import Reactions
from channels.telegram.send.rendering import (
    chat_action_target,
    inline_keyboard,
    message_fields,
    reply_parameters,
    target,
)
from channels.telegram.send.uploads import Uploads
from channels.telegram.text import is_group, measure

TEXT_LIMIT = 4096
DOWNLOAD_LIMIT = 20_000_000
CALLBACK_TEXT_LIMIT = 200


class TelegramSender(Sender):
    """The sending half of a Telegram bot."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._uploads = Uploads(api, self.send)
        self._reactions = Reactions(api)
        self._drafts = DraftPreviews(self._send_text)

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message, as plain text if Telegram refuses the entities."""
        parameters = {**target(address), **reply_parameters(address, reply), **inline_keyboard(reply.buttons)}
        return parse_sent("sendMessage", await self._send_text("sendMessage", parameters, reply.text))

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Edit one of the bot's messages; "message is not modified" counts as success."""
        parameters = {"chat_id": address.room, "message_id": platform_id, **inline_keyboard(reply.buttons)}
        try:
            await self._send_text("editMessageText", parameters, reply.text)
        except Rejected as error:
            if "message is not modified" not in str(error):
                raise
        return SentMessage(platform_id=platform_id)

    async def delete(self, address: Address, platform_id: str) -> None:
        """Delete one of the bot's messages."""
        try:
            await self._api.call("deleteMessage", {"chat_id": address.room, "message_id": platform_id})
        except Rejected as error:
            if "message to delete not found" not in str(error):
                raise

    async def update_draft(self, address: Address, draft: DraftText) -> SentMessage | None:
        """Preview in private chats, for 30 s at a time; elsewhere send a message and edit it."""
        if await self._drafts.preview(address, draft):
            return None
        reply = Reply(text=draft.text, key=draft.key)
        if draft.platform_id is None:
            return await self.send(address, reply)
        return await self.edit(address, draft.platform_id, reply)

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Set an emoji on a message or remove the bot's; Rejected if the chat allows none."""
        await self._reactions.set(address, platform_id, reaction)

    async def add_reaction(self, address: Address, platform_id: str, emoji: str) -> None:
        """Set an emoji on a message in place of the bot's earlier one."""
        await self._reactions.add(address, platform_id, emoji)

    async def typing(self, address: Address) -> None:
        """Show "typing" for about five seconds."""
        await self._api.call("sendChatAction", {**chat_action_target(address), "action": "typing"})

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file by its type, or as a document if Telegram refuses it as that type."""
        return await self._uploads.send(address, file, key=key)

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes, at most 20 MB."""
        file = await self._api.call("getFile", {"file_id": ref})
        path = file.get("file_path") if isinstance(file, dict) else None
        if not isinstance(path, str) or not _is_safe_path(path):
            raise Rejected("getFile: the response names no file")
        async for chunk in limited(self._api.fetch(path.lstrip("/")), DOWNLOAD_LIMIT):
            yield chunk

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Show a short notice to the user who pressed a button; commands have none."""
        if not to.token:
            return
        notice = replace_surrogates(text)[:CALLBACK_TEXT_LIMIT]
        await self._api.call("answerCallbackQuery", {"callback_query_id": to.token, "text": notice})

    async def reply_confidentially(self, to: Message | Command, text: str) -> None:
        """Write to the person's private chat, which must have begun; a group or channel has none."""
        if is_group(to.author.id):
            raise Undeliverable("the message was written in the name of a chat")
        await self._send_text("sendMessage", {"chat_id": to.author.id}, text)

    async def _send_text(self, method: str, target: Mapping[str, Any], text: str) -> Any:
        fields = _render(text)
        try:
            return await self._api.call(method, {**target, **fields})
        except Rejected as error:
            if "entities" not in fields or not is_about_markup(error):
                raise
        return await self._api.call(method, {**target, **message_fields(text)})


def _is_safe_path(path: str) -> bool:
    """Return whether the path stays below the bot's files; `quote` escapes queries and fragments."""
    return bool(path) and "://" not in path and "\\" not in path and not {"..", "."} & set(path.split("/"))


def _render(text: str) -> dict[str, Any]:
    """Render the text; if the result is too long, send the source unchanged."""
    if len(text) > TEXT_LIMIT:
        return message_fields(text)
    rendered = markup.render(text)
    if measure(rendered.text) > TEXT_LIMIT:
        return message_fields(text)
    return message_fields(rendered.text, tuple(markup.encode_entity(entity) for entity in rendered.entities))
