"""Speak at Telegram: messages, edits, previews, reactions, files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from channels.errors import Rejected
from channels.message import Address, Command, File, Press, Reply, Sent, Showing, Sign
from channels.port import Channel
from channels.telegram.api import Api, sent
from channels.telegram.errors import is_about_markup
from channels.telegram.send import markup
from channels.telegram.send.drafts import Stage
from channels.telegram.send.reactions import Reactions
from channels.telegram.send.rendering import keyboard, reply_parameters, target, wording
from channels.telegram.send.uploads import Uploads
from channels.telegram.text import encodable, measure

TEXT_LIMIT = 4096
DOWNLOAD_LIMIT = 20_000_000
CALLBACK_TEXT_LIMIT = 200


class TelegramChannel(Channel):
    """The sending half of a Telegram bot."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._uploads = Uploads(api, self.send)
        self._reactions = Reactions(api)
        self._stage = Stage(self._say)

    async def send(self, address: Address, reply: Reply) -> Sent:
        """Send one message, as plain text when Telegram refuses our entities."""
        place = {**target(address), **reply_parameters(reply), **keyboard(reply.buttons)}
        return sent("sendMessage", await self._say("sendMessage", place, reply.text))

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> Sent:
        """Make a message of ours say something else; Telegram's complaint that it does already is success."""
        place = {"chat_id": address.room, "message_id": platform_id, **keyboard(reply.buttons)}
        try:
            await self._say("editMessageText", place, reply.text)
        except Rejected as error:
            if "message is not modified" not in str(error):
                raise
        return Sent(platform_id=platform_id)

    async def show(self, address: Address, showing: Showing) -> Sent | None:
        """Preview in private chats, where it goes away after 30 s; elsewhere send a message and edit it."""
        if await self._stage.preview(address, showing):
            return None
        reply = Reply(text=showing.text, key=showing.key)
        if showing.platform_id is None:
            return await self.send(address, reply)
        return await self.edit(address, showing.platform_id, reply)

    async def react(self, address: Address, platform_id: str, sign: Sign | None) -> None:
        """Put an emoji under a message, or take ours away; Rejected where the chat allows none of ours."""
        await self._reactions.put(address, platform_id, sign)

    async def typing(self, address: Address) -> None:
        """Show "typing" for about five seconds."""
        await self._api.call("sendChatAction", {**target(address), "action": "typing"})

    async def upload(self, address: Address, file: File, *, key: str) -> Sent:
        """Send a file by its type, as a document where Telegram does not take it as that."""
        return await self._uploads.send(address, file, key=key)

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes, 20 MB at the most."""
        described = await self._api.call("getFile", {"file_id": ref})
        path = described.get("file_path") if isinstance(described, dict) else None
        if not isinstance(path, str) or not _is_harmless(path):
            raise Rejected("getFile: the answer names no file")
        size = 0
        async for chunk in self._api.fetch(path.lstrip("/")):
            size += len(chunk)
            if size > DOWNLOAD_LIMIT:
                raise Rejected(f"the file has more than {DOWNLOAD_LIMIT} bytes")
            yield chunk

    async def answer(self, to: Press | Command, text: str) -> None:
        """Show a short notice to the person who pressed; a command has nothing of its own to answer."""
        if not to.token:
            return
        notice = encodable(text)[:CALLBACK_TEXT_LIMIT]
        await self._api.call("answerCallbackQuery", {"callback_query_id": to.token, "text": notice})

    async def _say(self, method: str, place: Mapping[str, Any], text: str) -> Any:
        said = _worded(text)
        try:
            return await self._api.call(method, {**place, **said})
        except Rejected as error:
            if "entities" not in said or not is_about_markup(error):
                raise
        return await self._api.call(method, {**place, **wording(text)})


def _is_harmless(path: str) -> bool:
    """Refuse what would lead out of the bot's files; `quote` takes care of queries and fragments."""
    return bool(path) and "://" not in path and "\\" not in path and not {"..", "."} & set(path.split("/"))


def _worded(text: str) -> dict[str, Any]:
    """Render the text; one that does not fit with its rendering is sent as it is."""
    if len(text) > TEXT_LIMIT:
        return wording(text)
    rendered = markup.render(text)
    if measure(rendered.text) > TEXT_LIMIT:
        return wording(text)
    return wording(rendered.text, tuple(markup.dump(entity) for entity in rendered.entities))
