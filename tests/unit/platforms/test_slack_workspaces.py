"""A Slack channel serves one workspace and ignores what others send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import pytest

from channels.message import IgnoredUpdate, Message
from channels.slack.receive import codec, interactions

OURS, OTHER = "T0TEAM", "T0OTHER"
SAMPLES = {
    path.name.removesuffix(".json"): json.loads(path.read_text())
    for path in files("channels.slack").joinpath("samples").iterdir()
}
ACCEPTED = sorted(name for name, one in SAMPLES.items() if one["expected"]["type"] != "IgnoredUpdate")


def _bot(sample: Mapping[str, Any]) -> codec.Bot:
    return codec.Bot(**{**sample["bot"], "team": OTHER})


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_update_of_another_workspace_is_ignored(name: str) -> None:
    """Events, commands, presses and modals of a workspace that is not the bot's have no effect."""
    sample = SAMPLES[name]
    decoded = codec.decode(sample["update"], channel="chn_1", bot=_bot(sample))
    assert decoded == IgnoredUpdate(reason="an update of another workspace")


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_no_modal_opens_for_another_workspace(name: str) -> None:
    """The bot's token is not used to answer a press in another workspace."""
    sample = SAMPLES[name]
    assert interactions.parse_modal_request(sample["update"], _bot(sample)) is None


def test_a_modal_opens_for_the_bots_own_workspace() -> None:
    """The press of the sample asks for a comment."""
    sample = SAMPLES["press_that_asks"]
    assert interactions.parse_modal_request(sample["update"], codec.Bot(**sample["bot"])) is not None


@pytest.mark.parametrize(
    ("team_id", "authorized", "is_accepted"),
    [(OTHER, OURS, True), (OURS, OTHER, False), (OURS, None, True), (None, OURS, True), (None, None, True)],
)
def test_a_shared_channels_event_belongs_to_the_authorized_workspace(
    team_id: str | None, authorized: str | None, is_accepted: bool
) -> None:
    """`team_id` may be that of the other organisation; `authorizations` names the workspace of the app."""
    sample = json.loads(json.dumps(SAMPLES["channel_plain"]))
    payload = sample["update"]["payload"]
    del payload["team_id"], payload["authorizations"]
    payload |= {"team_id": team_id} if team_id else {}
    payload |= {"authorizations": [{"team_id": authorized, "is_bot": True}]} if authorized else {}
    decoded = codec.decode(sample["update"], channel="chn_1", bot=codec.Bot(**sample["bot"]))
    assert isinstance(decoded, Message) is is_accepted


def test_a_shared_channels_modal_belongs_to_the_workspace_of_the_app() -> None:
    """A user of another organisation may submit a modal of this workspace's app."""
    sample = json.loads(json.dumps(SAMPLES["view_submission"]))
    payload = sample["update"]["payload"]
    payload["view"]["app_installed_team_id"] = OTHER
    decoded = codec.decode(sample["update"], channel="chn_1", bot=codec.Bot(**sample["bot"]))
    assert isinstance(decoded, IgnoredUpdate)
