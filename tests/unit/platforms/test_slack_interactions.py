"""Slack's buttons and modals, held to any text: what is asked comes back as it was pressed, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from channels.message import Button, ButtonPress, IgnoredUpdate
from channels.slack import payloads
from channels.slack.receive import codec, interactions
from channels.slack.simulator.api.structure import check_modal

BOT = codec.Bot(id="U0BOT", bot_id="B0BOT", team="T0TEAM")
DATA = st.text(alphabet="abc_:0123456789", min_size=1, max_size=64)
IDS = st.text(alphabet="ABC019", min_size=1, max_size=20)
ANY = st.text(max_size=40) | st.text(alphabet=st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010))


def button_pressed(
    button: Button, *, user: str = "U0ADA", room: str = "C0ROOM", thread: str | None = None
) -> Any:
    """Return Slack's payload for a press."""
    container = {"type": "message", "message_ts": "2.0", "channel_id": room}
    action = {"action_id": payloads.action_id_of(button), "value": button.data, "action_ts": "3.0"}
    place = {"container": container | ({"thread_ts": thread} if thread else {}), "channel": {"id": room}}
    who = {"user": {"id": user}, "team": {"id": "T0TEAM"}}
    shape = {"type": "block_actions", **who, **place, "trigger_id": "t", "response_url": "https://hooks/x"}
    return {"type": "interactive", "payload": {**shape, "actions": [action]}}


def modal_submitted(view: Any, texts: object, *, user: str) -> Any:
    """Return Slack's payload for a submitted modal."""
    values = {"comment": {"comment": {"type": "plain_text_input", "value": texts}}}
    kept = {**view, "id": "V1", "state": {"values": values}}
    payload = {"type": "view_submission", "user": {"id": user}, "team": {"id": "T0TEAM"}, "view": kept}
    return {"type": "interactive", "payload": payload}


@given(DATA, st.text(min_size=1), IDS, IDS, st.none() | st.just("1.5"), st.text())
def test_a_comment_comes_back_with_its_press(
    data: str, prompt: str, user: str, room: str, thread: str | None, words: str
) -> None:
    """With any question and comment, the modal is valid for Slack and keeps the press that opened it."""
    button = Button(label="x", data=data, prompt=prompt)
    reported = button_pressed(button, user=user, room=room, thread=thread)
    asking = interactions.parse_modal_request(reported, BOT)
    assert asking is not None
    check_modal(asking.view)
    assert len(payloads.action_id_of(button)) <= 255
    plain = codec.decode(reported, channel="chn_1", bot=BOT)
    back = codec.decode(
        json.loads(json.dumps(modal_submitted(asking.view, words, user=user))), channel="chn_1", bot=BOT
    )
    assert isinstance(plain, ButtonPress)
    assert isinstance(back, ButtonPress)
    assert (back.data, back.address, back.author) == (data, plain.address, plain.author)
    assert (back.platform_id, back.token) == (plain.platform_id, plain.token)
    assert back.key != plain.key
    assert not any("\ud800" <= character <= "\udfff" for character in back.comment)


def test_a_comment_from_another_organisation_is_accepted() -> None:
    """In Slack Connect a submission's team is the person's own; the view names the app's workspace."""
    reported = button_pressed(Button(label="x", data="a", prompt="y"))
    asking = interactions.parse_modal_request(reported, BOT)
    assert asking is not None
    submitted = modal_submitted(asking.view, "not today", user="U0ADA")
    submitted["payload"]["team"] = {"id": "T0OTHER"}
    submitted["payload"]["view"] |= {"team_id": "T0OTHER", "app_installed_team_id": "T0TEAM"}
    back = codec.decode(submitted, channel="chn_1", bot=BOT)
    assert isinstance(back, ButtonPress)
    assert back.comment == "not today"


def test_a_comment_in_an_organisation_that_installed_the_app_is_accepted() -> None:
    """The press names its workspace, the submitted view the organisation."""
    bot = replace(BOT, team="", enterprise="E0GRID")
    asking = interactions.parse_modal_request(button_pressed(Button(label="x", data="a", prompt="y")), bot)
    assert asking is not None
    submitted = modal_submitted(asking.view, "not today", user="U0ADA")
    for organisation, wanted in (("E0GRID", ButtonPress), ("E0OTHER", IgnoredUpdate)):
        submitted["payload"]["view"]["app_installed_team_id"] = organisation
        assert isinstance(codec.decode(submitted, channel="chn_1", bot=bot), wanted)


@given(DATA)
def test_a_button_without_a_prompt_asks_for_nothing(data: str) -> None:
    """Its press is handled at once."""
    assert interactions.parse_modal_request(button_pressed(Button(label="x", data=data)), BOT) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | ANY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY, inner, max_size=3),
    max_leaves=8,
)
_NAMES = ["type", "user", "team", "channel", "container", "message", "actions", "trigger_id", "response_url"]


@given(st.sampled_from(_NAMES), _JSON, ANY, ANY)
def test_no_press_raises(name: str, value: Any, prompt: str, user: str) -> None:
    """Any part of a press may be anything, half characters too."""
    reported = button_pressed(Button(label="x", data="a", prompt=prompt or "y"), user=user or "U")
    reported["payload"][name] = value
    interactions.parse_modal_request(reported, BOT)
    codec.decode(reported, channel="chn_1", bot=BOT)


@given(st.sampled_from(["id", "callback_id", "private_metadata", "state"]), _JSON, ANY)
def test_no_modal_raises(name: str, value: Any, words: str) -> None:
    """Any part of what comes back may be anything."""
    asking = interactions.parse_modal_request(button_pressed(Button(label="x", data="a", prompt="y")), BOT)
    assert asking is not None
    reported = modal_submitted(asking.view, words, user="U0ADA")
    reported["payload"]["view"][name] = value
    codec.decode(reported, channel="chn_1", bot=BOT)
