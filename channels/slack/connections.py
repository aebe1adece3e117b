"""Connect a bot of one workspace, or an app that many workspaces install."""

from __future__ import annotations

from channels.errors import Unsupported
from channels.port import ChannelState, Connection
from channels.slack.api import Api
from channels.slack.installations import ChannelInstallationStore
from channels.slack.receive.install_pages import SlackInstallations
from channels.slack.receive.receiver import SlackReceiver
from channels.slack.send.sender import SlackSender
from channels.slack.send.workspace_sender import WorkspaceSender
from channels.slack.thread_locations import ThreadLocations
from channels.slack.workspaces import InstalledWorkspaces, SingleWorkspace


async def connect_workspace(channel: str, api: Api, state: ChannelState) -> Connection:
    """Return the connection of a bot token; raises Unauthorized if it is not valid."""
    bot = await api.identify()
    locations = ThreadLocations(state)
    receiver = SlackReceiver(api, SingleWorkspace(api, bot), locations, state, channel=channel)
    return Connection(receiver=receiver, sender=SlackSender(api, bot=bot, state=state, locations=locations))


async def connect_installed(channel: str, api: Api, state: ChannelState) -> Connection:
    """Return the connection of an app, with the workspaces that installed it."""
    if state.secrets is None:
        raise Unsupported("an app of many workspaces needs a store of secrets")
    workspaces = InstalledWorkspaces(api, ChannelInstallationStore(state.secrets))
    locations = ThreadLocations(state)
    return Connection(
        receiver=SlackReceiver(api, workspaces, locations, state, channel=channel),
        sender=WorkspaceSender(workspaces, state, locations),
        installations=SlackInstallations(api, state.secrets),
    )
