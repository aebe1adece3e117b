"""Send to the workspaces of an app, each with its own bot."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from channels.closing import ForwardingSender
from channels.errors import Unauthorized, Undeliverable
from channels.message import Address
from channels.port import ChannelState
from channels.slack.errors import INSTALL_CODES, error_code
from channels.slack.send.sender import SlackSender
from channels.slack.thread_locations import ThreadLocations
from channels.slack.workspaces import ENTERPRISE, TEAM, SlackWorkspaces, Workspace, find_place

REF_SEPARATOR = "|"


class WorkspaceSender(ForwardingSender):
    """The sending half of an app that many workspaces installed: an address names its workspace."""

    def __init__(self, workspaces: SlackWorkspaces, state: ChannelState, locations: ThreadLocations) -> None:
        self._workspaces = workspaces
        self._locations = locations
        self._state = state
        self._senders: dict[str, tuple[str, SlackSender]] = {}

    @asynccontextmanager
    async def using(self, address: Address) -> AsyncIterator[SlackSender]:
        """Yield the sender of the address's workspace; a refused token names the remedy."""
        try:
            yield await self._sender(address)
        except Unauthorized as error:
            if error_code(error) not in INSTALL_CODES:
                raise
            team = address.extras.get(TEAM) or address.extras.get(ENTERPRISE)
            raise Unauthorized(f"{error}: install the app again in workspace {team}") from error

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; the reference names the workspace, as `refer` wrote it."""
        team, enterprise, url = (*ref.split(REF_SEPARATOR, 2), "", "")[:3]
        location = Address(channel="", room="", extras={TEAM: team, ENTERPRISE: enterprise})
        async for chunk in (await self._sender(location)).download(url):
            yield chunk

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
