"""A Slack channel serves one workspace and ignores what others send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from importlib.resources import files
from typing import Any

import pytest

from channels.message import Update
from channels.slack.api import Api, connect
from channels.slack.payloads import Bot
from channels.slack.receive import interactions
from channels.slack.receive.bolt import BoltInbox, parse_request
from channels.slack.settings import SlackSettings
from channels.slack.thread_locations import ThreadLocations
from channels.slack.workspaces import SingleWorkspace
from channels.testing.memory_state import MemoryChannelState
from egress.guard import TRUSTED

OURS, OTHER = "T0TEAM", "T0OTHER"
SAMPLES = {
    path.name.removesuffix(".json"): json.loads(path.read_text())
    for path in files("channels.slack").joinpath("samples").iterdir()
}
ACCEPTED = sorted(name for name, one in SAMPLES.items() if one["expected"]["type"] != "IgnoredUpdate")
UNREACHABLE = {"bot_token": "xoxb-1", "app_token": "xapp-1", "base_url": "http://127.0.0.1:9/api/"}


@pytest.fixture(name="api")
async def unreachable_api() -> AsyncIterator[Api]:
    """Return a Web API that no call reaches."""
    async with connect(SlackSettings.model_validate(UNREACHABLE), TRUSTED) as api:
        yield api


async def _dispatch(api: Api, payload: Mapping[str, Any], bot: Bot) -> tuple[int, list[Update]]:
    """Dispatch a payload of Socket Mode; return the status and the updates that were accepted."""
    accepted: list[Update] = []

    async def accept(update: Update) -> None:
        accepted.append(update)

    request = parse_request(dict(payload), mode="socket_mode")
    assert request is not None
    answer = await BoltInbox(
        api, SingleWorkspace(api, bot), ThreadLocations(MemoryChannelState()), channel="chn_1"
    ).dispatch(request, accept)
    return answer.status, accepted


@pytest.mark.parametrize("name", ACCEPTED)
async def test_an_update_of_the_own_workspace_is_accepted(api: Api, name: str) -> None:
    """Bolt passes on all that the codec accepts."""
    sample = SAMPLES[name]
    status, accepted = await _dispatch(api, sample["update"]["payload"], Bot(**sample["bot"]))
    assert (status, len(accepted)) == (200, 1)


@pytest.mark.parametrize("name", ACCEPTED)
async def test_an_update_of_another_workspace_is_ignored(api: Api, name: str) -> None:
    """Events, commands, presses and modals of a workspace that is not the bot's have no effect."""
    sample = SAMPLES[name]
    bot = Bot(**{**sample["bot"], "team": OTHER})
    assert await _dispatch(api, sample["update"]["payload"], bot) == (200, [])


def test_a_modal_opens_for_the_bots_own_workspace() -> None:
    """The press of the sample asks for a comment."""
    sample = SAMPLES["press_that_asks"]
    assert interactions.parse_modal_request(sample["update"], Bot(**sample["bot"])) is not None


@pytest.mark.parametrize(
    ("team_id", "authorized", "is_accepted"),
    [(OTHER, OURS, True), (OURS, OTHER, False), (OURS, None, True), (None, OURS, True), (None, None, True)],
)
async def test_a_shared_channels_event_belongs_to_the_authorized_workspace(
    api: Api, team_id: str | None, authorized: str | None, is_accepted: bool
) -> None:
    """`team_id` may be that of the other organisation; `authorizations` names the workspace of the app."""
    sample = json.loads(json.dumps(SAMPLES["channel_plain"]))
    payload = sample["update"]["payload"]
    del payload["team_id"], payload["authorizations"]
    payload |= {"team_id": team_id} if team_id else {}
    payload |= {"authorizations": [{"team_id": authorized, "is_bot": True}]} if authorized else {}
    status, accepted = await _dispatch(api, payload, Bot(**sample["bot"]))
    assert (status, len(accepted)) == (200, int(is_accepted))


async def test_a_shared_channels_modal_belongs_to_the_workspace_of_the_app(api: Api) -> None:
    """A user of another organisation may submit a modal of this workspace's app."""
    sample = json.loads(json.dumps(SAMPLES["view_submission"]))
    payload = sample["update"]["payload"]
    payload["view"]["app_installed_team_id"] = OTHER
    assert await _dispatch(api, payload, Bot(**sample["bot"])) == (200, [])
