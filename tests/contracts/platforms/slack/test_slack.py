"""Slack's own rules: v0 signatures, mentions sent twice, markup that cannot mention, errors by name."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from channels.errors import (
    Ambiguous,
    NotPermitted,
    RateLimited,
    Rejected,
    ThreadUndeliverable,
    Unauthorized,
    Undeliverable,
    Unreachable,
)
from channels.message import Button, Message, MessageDeleted, RoomKind
from channels.port import Connection, WebhookRequest
from channels.slack import plugin
from channels.slack.errors import translate_error
from channels.slack.receive.signature import is_signed
from channels.slack.simulator import Simulator
from channels.slack.simulator.outgoing import signature_headers
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from slack_connections import ROOM, SECRET, make_reply

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
NOW = 1767225600.0


def signed_request(body: bytes, content_type: str = JSON, **others: Any) -> WebhookRequest:
    """Return a signed post."""
    return WebhookRequest(headers=signature_headers(SECRET, body, content_type, **others), body=body)


def received_texts(recorder: UpdateRecorder) -> list[str]:
    """Return the texts that were received."""
    return [update.text for update in recorder.updates if isinstance(update, Message)]


@pytest.mark.parametrize(
    ("age", "fresh"), [(0, True), (299, True), (-299, True), (301, False), (-301, False)]
)
def test_a_signature_is_good_for_five_minutes(age: int, fresh: bool) -> None:
    """An old post is refused, and so is one from the future."""
    headers = signature_headers(SECRET, b"body", JSON, now=NOW - age)
    assert is_signed(SECRET, headers, b"body", now=NOW) is fresh


def test_slacks_own_example_verifies() -> None:
    """The example of Slack's page on verifying requests has this signature."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    assert is_signed("8f742231b10e8888abcd99yyyzzz85a5", headers, body, now=1531420618)


def test_no_flipped_bit_verifies() -> None:
    """Any other bit in body, signature or time makes another request of it."""
    headers = signature_headers(SECRET, b"body", JSON, now=NOW)
    assert is_signed(SECRET, headers, b"body", now=NOW)
    for place in range(4 * 8):
        flipped = bytearray(b"body")
        flipped[place // 8] ^= 1 << place % 8
        assert not is_signed(SECRET, headers, bytes(flipped), now=NOW)
    shown = headers["x-slack-signature"]
    for place, bit in ((place, bit) for place in range(len(shown)) for bit in range(7)):
        other = shown[:place] + chr(ord(shown[place]) ^ 1 << bit) + shown[place + 1 :]
        assert not is_signed(SECRET, {**headers, "x-slack-signature": other}, b"body", now=NOW)
    moved = {**headers, "x-slack-request-timestamp": str(int(NOW) + 1)}
    assert not is_signed(SECRET, moved, b"body", now=NOW)


@given(st.text(), st.text() | st.sampled_from(["9" * 5000, "\u0661", "-1", "1e9", "nan", " 1"]), st.binary())
def test_garbage_is_never_signed_and_never_raises(shown: str, stamp: str, body: bytes) -> None:
    """Any other headers are refused by the verifier."""
    headers = {"x-slack-signature": shown, "x-slack-request-timestamp": stamp}
    assert not is_signed(SECRET, headers, body, now=NOW)


@pytest.mark.parametrize("secret", ["", "  ", None, "short"])
def test_http_mode_without_a_signing_secret_is_refused(secret: str | None) -> None:
    """No setting admits unsigned requests, and the token is not shown."""
    given: dict[str, Any] = {"bot_token": "xoxb-canary", "mode": "http", "signing_secret": secret}
    with pytest.raises(ValidationError) as caught:
        plugin.settings(**given)
    assert "xoxb-canary" not in str(caught.value)


def test_socket_mode_needs_the_apps_token() -> None:
    """The bot's token alone opens no socket."""
    given: dict[str, Any] = {"bot_token": "xoxb-1"}
    with pytest.raises(ValidationError):
        plugin.settings(**given)


async def test_the_challenge_is_answered_when_signed(posted_to: Connection) -> None:
    """Slack's check of the address gets its challenge back; an unsigned one gets 401."""
    body = json.dumps({"type": "url_verification", "challenge": "3eZbrw", "token": "x"}).encode()
    answer = await posted_to.receiver.receive(signed_request(body), UpdateRecorder().accept)
    assert (answer.status, json.loads(answer.body)) == (200, {"challenge": "3eZbrw"})
    stale = signed_request(body, now=time.time() - 400)
    assert (await posted_to.receiver.receive(stale, UpdateRecorder().accept)).status == 401


@pytest.mark.parametrize("body", [b"payload=%7B", b"payload=[1]", b"", b"a=1"])
async def test_a_garbled_form_is_400(posted_to: Connection, body: bytes) -> None:
    """Invalid content with a good signature is distinguished from a forgery."""
    assert (
        await posted_to.receiver.receive(signed_request(body, FORM), UpdateRecorder().accept)
    ).status == 400


async def test_a_body_that_is_no_text_is_401(posted_to: Connection) -> None:
    """Slack signs text; the SDK's verifier refuses anything else, whatever its signature."""
    request = signed_request(b"\xff=1", FORM)
    assert (await posted_to.receiver.receive(request, UpdateRecorder().accept)).status == 401


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"ssl_check=1&token=unused", FORM),
        (json.dumps({"type": "app_rate_limited", "team_id": "T", "minute_rate_limited": 1}).encode(), JSON),
    ],
)
async def test_what_slack_only_announces_is_accepted(
    posted_to: Connection, body: bytes, content_type: str
) -> None:
    """A certificate check and a notice of dropped events get a plain 200."""
    recorder = UpdateRecorder()
    assert (
        await posted_to.receiver.receive(signed_request(body, content_type), recorder.accept)
    ).status == 200
    assert recorder.updates == []


async def test_a_mention_delivered_twice_is_one_message(simulator: Simulator, slack: Connection) -> None:
    """Message and app_mention have one key, so that the store accepts one of them."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.say("C0ROOM", "<@U0BOT> run the tests")
        one, two = await recorder.wait(2)
    assert one == two
    assert isinstance(one, Message)
    assert (one.text, one.mentions_bot, one.room) == ("run the tests", True, RoomKind.GROUP)


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_deleted_message_is_reported_whether_or_not_it_has_replies(
    simulator: Simulator, slack: Connection, is_answered: bool
) -> None:
    """In place of a message with replies Slack shows a tombstone, and sends no deletion but a change."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        asked = await simulator.say("D0ADA", "my password is swordfish")
        (message,) = await recorder.wait(1)
        assert isinstance(message, Message)
        if is_answered:
            await slack.sender.send(message.address, make_reply("thanks"))
            await simulator.wait_until_acknowledged()
        await simulator.delete("D0ADA", asked)
        _, deleted = await recorder.wait(2)
    assert isinstance(deleted, MessageDeleted)
    assert (deleted.address, deleted.platform_id) == (message.address, asked)


async def test_a_posted_slash_command_with_odd_fields_is_taken(posted_to: Connection) -> None:
    """A form without the needed fields is accepted and ignored."""
    body = urlencode({"command": "/dovecote", "text": "status"}).encode()
    recorder = UpdateRecorder()
    assert (await posted_to.receiver.receive(signed_request(body, FORM), recorder.accept)).status == 200
    assert recorder.updates == []


@pytest.mark.parametrize(
    "text",
    ["<!channel> hi", "<@U0ADA>", "[x](<!channel>)", "`<!here>`", "**<!everyone>**", "&lt;!channel&gt;"],
)
async def test_nothing_we_say_notifies_anybody(simulator: Simulator, slack: Connection, text: str) -> None:
    """Model text cannot mention a person or a channel, with buttons or without."""
    for buttons in ((), (Button(label="Yes", data="y"),)):
        await slack.sender.send(ROOM, make_reply(text, buttons=buttons))
    assert not [post.notified_targets for post in simulator.messages() if post.notified_targets]
    assert "<!" not in json.dumps([post.raw for post in simulator.messages()])


async def test_a_send_carries_the_deliverys_key(simulator: Simulator, slack: Connection) -> None:
    """Whether an ambiguous send happened can be read in the room's history."""
    await slack.sender.send(ROOM, make_reply("hello"))
    (post,) = simulator.messages()
    assert post.raw["metadata"]["event_payload"] == {"delivery_id": "dlv_1.0"}


async def test_a_long_question_with_buttons_fits_slacks_sections(
    simulator: Simulator, slack: Connection
) -> None:
    """A section holds 3000 characters; a longer text has several."""
    text = "\n\n".join("<&> word " * 50 for _ in range(5))
    await slack.sender.send(ROOM, make_reply(text, buttons=(Button(label="x" * 100, data="y"),)))
    (post,) = simulator.messages()
    assert post.text.count("word") == 250


async def test_an_edit_takes_the_buttons_away(simulator: Simulator, slack: Connection) -> None:
    """Once it is decided there is nothing left to press."""
    sent = await slack.sender.send(ROOM, make_reply("May I?", buttons=(Button(label="Yes", data="y"),)))
    await slack.sender.edit(ROOM, sent.platform_id, make_reply("Approved by Ada"))
    (post,) = simulator.messages()
    assert (post.text, post.buttons) == ("Approved by Ada", [])


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("ratelimited", RateLimited),
        ("channel_not_found", Undeliverable),
        ("is_archived", Undeliverable),
        ("thread_not_found", ThreadUndeliverable),
        ("restricted_action_thread_locked", ThreadUndeliverable),
        ("cannot_reply_to_message", ThreadUndeliverable),
        ("team_added_to_org", Unreachable),
        ("external_channel_migrating", Unreachable),
        ("not_in_channel", NotPermitted),
        ("restricted_action", NotPermitted),
        ("messages_tab_disabled", NotPermitted),
        ("update_failed", Ambiguous),
        ("file_update_failed", Ambiguous),
        ("accesslimited", Unauthorized),
        ("account_inactive", Unauthorized),
        ("invalid_auth", Unauthorized),
        ("token_revoked", Unauthorized),
        ("missing_scope", NotPermitted),
        ("msg_too_long", Rejected),
        ("never_heard_of", Rejected),
    ],
)
def test_slacks_errors_have_a_meaning(word: str, kind: type[Exception]) -> None:
    """Each refusal maps to one of our errors, and an unknown one gives up."""
    assert type(translate_error(word, method="chat.postMessage")) is kind


def test_a_missing_permission_names_itself_and_what_to_do() -> None:
    """The operator reads which scope, and where to grant it."""
    error = translate_error("missing_scope", method="files.info", needed="files:read")
    assert isinstance(error, NotPermitted)
    assert error.permission == "files:read"
    assert "reinstall the app" in str(error)


@pytest.mark.parametrize(
    ("method", "word", "scope"),
    [
        ("chat.postMessage", "ratelimited", "room"),
        ("chat.postMessage", "message_limit_exceeded", "room"),
        ("files.completeUploadExternal", "ratelimited", "room"),
        ("users.info", "ratelimited", "account"),
    ],
)
def test_a_rate_limit_holds_what_it_concerns(method: str, word: str, scope: str) -> None:
    """A limit of a method that concerns a room holds that room: no other method, and no other workspace."""
    error = translate_error(word, method=method, retry_after=7)
    assert isinstance(error, RateLimited)
    assert (error.scope, error.retry_after) == (scope, 7)


async def test_one_kind_of_content_can_fail(simulator: Simulator, slack: Connection) -> None:
    """A 5xx for messages with blocks is ambiguous; others are sent."""
    await simulator.fail(status=503, method="chat.postMessage", having="blocks", times=1000)
    await slack.sender.send(ROOM, make_reply("plain"))
    with pytest.raises(Ambiguous, match=r"chat\.postMessage: HTTP 503"):
        await slack.sender.send(ROOM, make_reply("May I?", buttons=(Button(label="Yes", data="y"),)))
    assert [post.text for post in simulator.messages()] == ["plain"]


async def test_an_org_wide_token_receives_from_every_workspace(simulator: Simulator) -> None:
    """auth.test names the organisation in place of a workspace; events name the workspace too."""
    settings = simulator.settings()
    simulator.server.installations.teams[str(settings["bot_token"])] = "E0GRID"
    simulator.world.room("C0ROOM").enterprise = "E0GRID"
    recorder = UpdateRecorder()
    async with open_connection(plugin, settings) as connection, receiving(connection, recorder):
        await simulator.say("C0ROOM", "<@U0BOT> hello")
        message = (await recorder.wait(1))[0]
    assert isinstance(message, Message)
