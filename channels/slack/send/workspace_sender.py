"""Send to the workspaces of an app, each with its own bot."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from datetime import datetime

from channels.errors import Undeliverable
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
from channels.slack.send.sender import SlackSender
from channels.slack.thread_locations import ThreadLocations
from channels.slack.workspaces import ENTERPRISE, TEAM, SlackWorkspaces, Workspace, find_place

REF_SEPARATOR = "|"


class WorkspaceSender(Sender):
    """The sending half of an app that many workspaces installed: an address names its workspace."""

    def __init__(self, workspaces: SlackWorkspaces, state: ChannelState, locations: ThreadLocations) -> None:
        self._workspaces = workspaces
        self._locations = locations
        self._state = state
        self._senders: dict[str, tuple[str, SlackSender]] = {}

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message in the address's workspace."""
        return await (await self._sender(address)).send(address, reply)

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Edit one of the messages of that workspace's bot."""
        return await (await self._sender(address)).edit(address, platform_id, reply)

    async def update_draft(self, address: Address, draft: DraftText) -> SentMessage:
        """Show a reply as it grows."""
        return await (await self._sender(address)).update_draft(address, draft)

    async def show_steps(self, address: Address, steps: ToolSteps) -> SentMessage | None:
        """Show a turn's tool calls."""
        return await (await self._sender(address)).show_steps(address, steps)

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Find a delivery in the address's workspace."""
        return await (await self._sender(address)).find(address, key, since=since)

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Set the bot's reaction on a message."""
        await (await self._sender(address)).react(address, platform_id, reaction)

    async def add_reaction(self, address: Address, platform_id: str, emoji: str) -> None:
        """Add a reaction to a message."""
        await (await self._sender(address)).add_reaction(address, platform_id, emoji)

    async def typing(self, address: Address) -> None:
        """Set the thread's status."""
        await (await self._sender(address)).typing(address)

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file."""
        return await (await self._sender(address)).upload(address, file, key=key)

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; the reference names the workspace, as `refer` wrote it."""
        team, enterprise, url = (*ref.split(REF_SEPARATOR, 2), "", "")[:3]
        location = Address(channel="", room="", extras={TEAM: team, ENTERPRISE: enterprise})
        async for chunk in (await self._sender(location)).download(url):
            yield chunk

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Show a notice to one user."""
        await (await self._sender(to.address)).reply_privately(to, text)

    async def reply_confidentially(self, to: Message | Command, text: str) -> None:
        """Show a text to one user."""
        await (await self._sender(to.address)).reply_confidentially(to, text)

    async def _sender(self, address: Address) -> SlackSender:
        """Return the sender of the address's workspace, with its present token."""
        workspace = await self._workspaces.find(**find_place(address))
        if workspace is None:
            raise Undeliverable(f"the app is not installed in workspace {address.extras.get(TEAM, '?')}")
        token = workspace.api.token
        known = self._senders.get(workspace.bot.team)
        if known is None or not hmac.compare_digest(known[0], token):
            known = (token, self._make_sender(workspace))
            self._senders[workspace.bot.team] = known
        return known[1]

    def _make_sender(self, workspace: Workspace) -> SlackSender:
        return SlackSender(workspace.api, bot=workspace.bot, state=self._state, locations=self._locations)


def refer(ref: str, *, team: str, enterprise: str) -> str:
    """Return a file's reference that names its workspace."""
    return REF_SEPARATOR.join((team, enterprise, ref))
