"""Send to Slack: messages, streams, edits, reactions, files, and notices to one user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any

from channels.errors import Rejected
from channels.inbox.errors import require_id
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
    ToolSteps,
)
from channels.port import ChannelState, Sender
from channels.slack.api import Api
from channels.slack.errors import MARKUP_ERRORS, error_code
from channels.slack.payloads import Bot
from channels.slack.send import lookup, rendering
from channels.slack.send.assistant_status import AssistantStatus
from channels.slack.send.notices import show_to
from channels.slack.send.reactions import Reactions
from channels.slack.send.steps import StepPlans
from channels.slack.send.streaming import STREAM_PREFIX, StreamingReplies
from channels.slack.send.uploads import FileTransfers
from channels.slack.thread_locations import ThreadLocations

Render = Callable[[Reply], dict[str, Any]]


class SlackSender(Sender):
    """The sending half of a Slack app."""

    def __init__(self, api: Api, *, bot: Bot, state: ChannelState, locations: ThreadLocations) -> None:
        self._api = api
        self._bot = bot
        self._streams = StreamingReplies(api, state, team=bot.team, send=self.send, update=self._update)
        self._steps = StepPlans(api, self._streams)
        self._files = FileTransfers(api, state)
        self._reactions = Reactions(api, bot_user_id=bot.id)
        self._status = AssistantStatus(api)
        self._locations = locations

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message, as plain text if Slack refuses the blocks."""
        no_previews = {"unfurl_links": False, "unfurl_media": False}
        parameters = {**rendering.target(address), **rendering.delivery_metadata(reply.key), **no_previews}
        await self._locations.note_thread(address)
        with self._status.sending(address):
            answer = await self._call_rendered("chat.postMessage", parameters, reply)
            return SentMessage(platform_id=require_id(answer.get("ts"), "chat.postMessage"))

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Edit one of the bot's messages and end its stream; buttons not in `reply` are removed."""
        ts = await self._streams.stop(address, platform_id)
        is_stream = platform_id.startswith(STREAM_PREFIX) and bool(reply.text.strip())
        render = rendering.render_markdown if is_stream else rendering.render_blocks
        await self._update(address, ts, reply, render)
        return SentMessage(platform_id=ts)

    async def delete(self, address: Address, platform_id: str) -> None:
        """Delete one of the bot's messages, also one whose stream has not ended."""
        parameters = {"channel": address.room, "ts": platform_id.removeprefix(STREAM_PREFIX)}
        try:
            await self._api.call("chat.delete", parameters)
        except Rejected as error:
            if error_code(error) != "message_not_found":
                raise

    async def update_draft(self, address: Address, draft: DraftText) -> SentMessage:
        """Show a reply as it grows, by Slack's own stream where possible."""
        await self._locations.note_thread(address)
        with self._status.sending(address):
            return await self._streams.update(address, draft)

    async def show_steps(self, address: Address, steps: ToolSteps) -> SentMessage | None:
        """Show a turn's tool calls as a plan with tasks, where Slack accepts streams."""
        return await self._steps.show(address, steps)

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Find a delivery: a file by the id stored at upload, a message by its metadata."""
        file_id = await self._files.get_file_id(key)
        if file_id is not None:
            return await lookup.find_file(self._api, address, file_id)
        started = await self._streams.get_started(key)
        return await lookup.find_message(self._api, address, key, since=since, bot=self._bot, started=started)

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Set the bot's reaction on a message, replacing an earlier one."""
        await self._reactions.set(address, platform_id, reaction)

    async def add_reaction(self, address: Address, platform_id: str, emoji: str) -> None:
        """Add a reaction by its name, beside the status reaction."""
        await self._reactions.add(address, platform_id, emoji)

    async def typing(self, address: Address) -> None:
        """Set the thread's status, which the reply clears; no effect where Slack has none."""
        await self._status.show_working(address)

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file in Slack's three steps."""
        with self._status.sending(address):
            return await self._files.upload(address, file, key=key)

    def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes."""
        return self._files.download(ref)

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Show a notice to that user only, by the interaction's response_url while it is valid."""
        await show_to(self._api, to, text)

    async def reply_confidentially(self, to: Message | Command, text: str) -> None:
        """Show a text to that user only, in the thread; it is gone when Slack is loaded again."""
        await show_to(self._api, to, text)

    async def _update(
        self, address: Address, ts: str, reply: Reply, render: Render = rendering.render_blocks
    ) -> None:
        parameters = {"channel": address.room, "ts": ts, **rendering.delivery_metadata(reply.key)}
        await self._call_rendered("chat.update", parameters, reply, render)

    async def _call_rendered(
        self, method: str, target: Mapping[str, Any], reply: Reply, render: Render = rendering.render_blocks
    ) -> Any:
        try:
            return await self._api.call(method, {**target, **render(reply)})
        except Rejected as error:
            if error_code(error) not in MARKUP_ERRORS:
                raise
        return await self._api.call(method, {**target, **rendering.render_plain(reply)})
