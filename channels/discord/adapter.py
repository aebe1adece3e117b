"""Speak at Discord: messages, edits, files, buttons. One request for each; nothing is retried."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from hashlib import sha256
from typing import Any

import aiohttp

from channels.discord import codec, markup
from channels.discord.api import Api, path
from channels.discord.deferred import Deferred, Place
from channels.errors import Ambiguous, Rejected
from channels.message import Address, Command, File, Press, Reply, Sent
from channels.port import Channel

TEXT_LIMIT = 2000
UPLOAD_LIMIT = 10 * 1024 * 1024
DOWNLOAD_LIMIT = 100 * 1024 * 1024
NONCE_LENGTH = 25
REFERENCE_PARTS = 3


def nonce(key: str) -> str:
    """Return a delivery's nonce: its key where that is short enough, else what spreads over all of it."""
    if 0 < len(key) <= NONCE_LENGTH:
        return key
    return base64.b32encode(sha256(key.encode()).digest()).decode().lower()[:NONCE_LENGTH]


class DiscordChannel(Channel):
    """The sending half of a Discord bot."""

    def __init__(self, api: Api, deferred: Deferred) -> None:
        self._api = api
        self._deferred = deferred

    async def send(self, address: Address, reply: Reply) -> Sent:
        """Send one message; a repetition of the same delivery within minutes is recognised by Discord.

        The first answer to a slash command takes the place of its "is thinking…".
        """
        waiting = self._deferred.take(address, reply.key)
        if waiting is not None:
            try:
                return await self._fill(waiting, reply)
            except Rejected:  # its time is over, or a text that is refused here is judged there
                self._deferred.drop(reply.key)
        place = {**codec.once(nonce(reply.key)), **codec.answering(reply), "flags": codec.NO_PREVIEW}
        where = path("channels", codec.place(address), "messages")
        return _sent(await self._say("POST", where, "send", place, reply))

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> Sent:
        """Make a message of ours say something else."""
        where = path("channels", codec.place(address), "messages", platform_id)
        await self._say("PATCH", where, "edit", {}, reply)
        return Sent(platform_id=platform_id)

    async def typing(self, address: Address) -> None:
        """Show "typing" for about ten seconds."""
        await self._api.call("POST", path("channels", codec.place(address), "typing"), name="typing")

    async def upload(self, address: Address, file: File, *, key: str) -> Sent:
        """Send a file as an attachment."""
        if len(file.content) > UPLOAD_LIMIT:
            raise Rejected(f"{file.name} has {len(file.content)} bytes, Discord takes {UPLOAD_LIMIT}")
        described = {
            **codec.once(nonce(key)),
            "content": codec.encodable(file.caption)[:TEXT_LIMIT],
            "allowed_mentions": {"parse": []},
            "attachments": [{"id": 0, "filename": file.name}],
        }
        form = aiohttp.FormData()
        form.add_field("payload_json", json.dumps(described), content_type="application/json")
        form.add_field("files[0]", file.content, filename=file.name, content_type=_type_of(file))
        where = path("channels", codec.place(address), "messages")
        return _sent(await self._api.call("POST", where, name="upload", form=form))

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; its address is asked for first, because addresses end after a day."""
        size = 0
        async for chunk in self._api.fetch(await self._find(ref)):
            size += len(chunk)
            if size > DOWNLOAD_LIMIT:
                raise Rejected(f"the file has more than {DOWNLOAD_LIMIT} bytes")
            yield chunk

    async def answer(self, to: Press | Command, text: str) -> None:
        """Show a notice to the person who pressed, and to nobody else."""
        parts = to.token.split("/")
        if len(parts) != REFERENCE_PARTS or not (parts[0].isdecimal() and parts[1].isdecimal()):
            raise Rejected("this press cannot be answered")
        application, number, token = parts
        notice = {**codec.said(text[:TEXT_LIMIT], ()), "flags": codec.ONLY_YOU}
        try:
            await self._post_unsigned(path("webhooks", application, token), notice)
        except Rejected:  # it was not acknowledged yet: then this is the acknowledgement
            first = {"type": codec.SAY, "data": notice}
            await self._post_unsigned(path("interactions", number, token, "callback"), first)

    async def _post_unsigned(self, where: str, body: Mapping[str, Any]) -> None:
        await self._api.call("POST", where, name="answer", body=body, as_bot=False)

    async def _fill(self, waiting: Place, reply: Reply) -> Sent:
        where = path("webhooks", waiting.application, waiting.token, "messages", "@original")
        body = codec.said(_worded(reply.text), reply.buttons)
        return _sent(await self._api.call("PATCH", where, name="answer", body=body, as_bot=False))

    async def _say(self, method: str, where: str, name: str, place: Mapping[str, Any], reply: Reply) -> Any:
        """Say it, and once more with every character shown as it is when Discord refuses the looks."""
        try:
            body = {**place, **codec.said(_worded(reply.text), reply.buttons)}
            return await self._api.call(method, where, name=name, body=body)
        except Rejected as error:
            plain = markup.escape(reply.text)
            if "content" not in str(error) or len(plain) > TEXT_LIMIT:
                raise
        return await self._api.call(
            method, where, name=name, body={**place, **codec.said(plain, reply.buttons)}
        )

    async def _find(self, ref: str) -> str:
        parts = ref.split("/")
        if len(parts) != REFERENCE_PARTS or not all(part.isdecimal() for part in parts):
            raise Rejected("this names no file")
        message = await self._api.call(
            "GET", path("channels", parts[0], "messages", parts[1]), name="find file"
        )
        files = message.get("attachments") if isinstance(message, dict) else None
        for file in files if isinstance(files, list) else ():
            if isinstance(file, dict) and file.get("id") == parts[2] and isinstance(file.get("url"), str):
                return str(file["url"])
        raise Rejected("the file is not there any more")


def _worded(text: str) -> str:
    """Render the text; one that does not fit with its rendering is sent as it is."""
    rendered = markup.render(text)
    return rendered if rendered.strip() and len(rendered) <= TEXT_LIMIT else text


def _type_of(file: File) -> str:
    kind, slash, rest = file.media_type.partition("/")
    plain = kind.isascii() and rest.isascii() and "\n" not in rest and "\r" not in rest
    return file.media_type if slash and plain else "application/octet-stream"


def _sent(result: object) -> Sent:
    number = result.get("id") if isinstance(result, dict) else None
    if not isinstance(number, str):
        raise Ambiguous("send: the answer names no message")
    return Sent(platform_id=number)
