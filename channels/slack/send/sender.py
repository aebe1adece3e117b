"""Speak at Slack: messages, streams, edits, signs, files, and notices to one person."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

from channels.errors import Ambiguous, Rejected, Unreachable
from channels.message import Address, Command, File, Press, Reply, Sent, Showing, Sign
from channels.port import Channel, Notes
from channels.slack.api import Api
from channels.slack.errors import MARKUP_REFUSED, word_of
from channels.slack.payloads import Bot
from channels.slack.send import lookup, rendering
from channels.slack.send.assistant_status import Status
from channels.slack.send.reactions import Signs
from channels.slack.send.streaming import Streams
from channels.slack.send.uploads import Files


class SlackChannel(Channel):
    """The sending half of a Slack app."""

    def __init__(self, api: Api, *, bot: Bot, notes: Notes) -> None:
        self._api = api
        self._streams = Streams(api, team=bot.team, say=self.send, update=self._update)
        self._files = Files(api, notes)
        self._signs = Signs(api, me=bot.id)
        self._status = Status(api)

    async def send(self, address: Address, reply: Reply) -> Sent:
        """Send one message, as plain text when Slack refuses our blocks."""
        quiet = {"unfurl_links": False, "unfurl_media": False}
        place = {**rendering.target(address), **rendering.mark(reply.key), **quiet}
        with self._status.speaking(address):
            return _sent("chat.postMessage", await self._say("chat.postMessage", place, reply))

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> Sent:
        """Make a message of ours say something else, its stream ended; buttons it had and has not go."""
        ts = await self._streams.end(address, platform_id)
        await self._update(address, ts, reply)
        return Sent(platform_id=ts)

    async def show(self, address: Address, showing: Showing) -> Sent:
        """Show a reply as it grows, by Slack's own stream where there can be one."""
        with self._status.speaking(address):
            return await self._streams.show(address, showing)

    async def find(self, address: Address, key: str, *, since: datetime) -> Sent | None:
        """Look for a delivery: a file by what we noted of it, a message by its metadata in the history."""
        number = await self._files.number_of(key)
        if number is not None:
            return await lookup.find_file(self._api, address, number)
        return await lookup.find_message(self._api, address, key, since=since)

    async def react(self, address: Address, platform_id: str, sign: Sign | None) -> None:
        """Put our sign under a message, in place of an earlier one."""
        await self._signs.put(address, platform_id, sign)

    async def typing(self, address: Address) -> None:
        """Set a thread's status, which the reply clears; where Slack has none nothing happens."""
        await self._status.show(address)

    async def upload(self, address: Address, file: File, *, key: str) -> Sent:
        """Send a file in Slack's three steps."""
        with self._status.speaking(address):
            return await self._files.upload(address, file, key=key)

    def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes."""
        return self._files.download(ref)

    async def answer(self, to: Press | Command, text: str) -> None:
        """Show a notice to that person and nobody else, by the interaction's own address while it is good."""
        said = rendering.escaped(text)[: rendering.TEXT_LIMIT]
        if "://" in to.token and await self._respond(to.token, said):
            return
        whisper = {**rendering.target(to.address), "user": to.author.id, "text": said}
        await self._api.call("chat.postEphemeral", whisper)

    async def _respond(self, url: str, text: str) -> bool:
        """Post to an interaction's own address; False when it is no address of Slack's, or has ended."""
        notice = {"response_type": "ephemeral", "replace_original": False, "text": text}
        try:
            return await self._api.respond(url, notice)
        except (Rejected, Unreachable):
            return False

    async def _update(self, address: Address, ts: str, reply: Reply) -> None:
        place = {"channel": address.room, "ts": ts, **rendering.mark(reply.key)}
        await self._say("chat.update", place, reply)

    async def _say(self, method: str, place: Mapping[str, Any], reply: Reply) -> Any:
        try:
            return await self._api.call(method, {**place, **rendering.worded(reply)})
        except Rejected as error:
            if word_of(error) not in MARKUP_REFUSED:
                raise
        return await self._api.call(method, {**place, **rendering.bare(reply)})


def _sent(method: str, answer: Mapping[str, Any]) -> Sent:
    ts = answer.get("ts")
    if not isinstance(ts, str) or not ts:
        raise Ambiguous(f"{method}: the answer names no message")
    return Sent(platform_id=ts)
