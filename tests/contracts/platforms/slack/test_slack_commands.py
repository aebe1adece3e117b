"""Commands, edits, reactions and presses of Slack's users, and their answers."""

from __future__ import annotations

import asyncio
import json

import pytest

from channels.message import (
    Author,
    Button,
    ButtonPress,
    Command,
    IgnoredUpdate,
    Message,
    Reaction,
    StatusReaction,
)
from channels.port import Connection
from channels.slack.receive import codec
from channels.slack.simulator import Simulator
from channels.slack.simulator.api.scopes import ALL_SCOPES
from channels.testing.connections import UpdateRecorder, receiving
from slack_connections import ROOM, make_reply, serve_webhook, wait_for_update

PROMPT_BUTTON = Button(label="Deny…", data="apr_1:no", prompt="Why not?")


def received_texts(recorder: UpdateRecorder) -> list[str]:
    """Return the texts that were received."""
    return [update.text for update in recorder.updates if isinstance(update, Message)]


async def test_a_slash_command_comes_as_a_command(simulator: Simulator, slack: Connection) -> None:
    """`/dovecote status` is a command, other words are a question, and nothing at all asks for help."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        for text in ("Jobs  logs job_1", "what now?", ""):
            await simulator.slash("C0ROOM", text)
        await recorder.wait(3)
    orders = [(update.name, update.rest) for update in recorder.updates if isinstance(update, Command)]
    assert (orders, received_texts(recorder)) == ([("jobs", "logs job_1"), ("help", "")], ["what now?"])
    assert len({update.key for update in recorder.updates}) == 3


async def test_a_command_is_answered_at_its_own_address(simulator: Simulator, slack: Connection) -> None:
    """Only the user sees it, also where the bot is no member, or when that URL is refused or expired."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.slash("C0ROOM", "status", user="U0BOB")
        (command,) = await recorder.wait(1)
    assert isinstance(command, Command)
    await slack.sender.reply_privately(command, "all well <!here>")
    simulator.server.refuses_responses = True
    await slack.sender.reply_privately(command, "well though Slack refuses")
    simulator.server.refuses_responses = False
    await simulator.advance(1801)
    await slack.sender.reply_privately(command, "still well")
    said = [(notice["user"], notice["text"]) for notice in simulator.world.notices]
    assert said == [
        ("U0BOB", "all well &lt;!here&gt;"),
        ("U0BOB", "well though Slack refuses"),
        ("U0BOB", "still well"),
    ]
    assert [method for method, _ in simulator.calls][-4:] == ["response_url", "chat.postEphemeral"] * 2


@pytest.mark.parametrize(
    "token", ["https://example.org/steal", "http://127.0.0.1:9/closed", "http://[::1/x", "1767225600.1.abc"]
)
async def test_an_answer_goes_to_no_other_address(
    simulator: Simulator, slack: Connection, token: str
) -> None:
    """A response URL that is not Slack's, or fails, is not used: the notice is ephemeral instead."""
    press = ButtonPress(key="k", address=ROOM, author=Author(id="U0BOB"), data="d", token=token)
    await slack.sender.reply_privately(press, "noted")
    assert [notice["user"] for notice in simulator.world.notices] == ["U0BOB"]
    assert [method for method, _ in simulator.calls][-1] == "chat.postEphemeral"


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("<@U0BOT> stop", ("stop", "")),
        ("<@U0BOT>, Queue steer", ("queue", "steer")),
        ("<@U0BOT> deny apr_1 too wide", ("deny", "apr_1 too wide")),
        ("<@U0BOT> /status", ("status", "")),
        ("<@U0BOT> stop the press", None),
        ("<@U0BOT> help me with the tests", None),
        ("stop", None),
        ("/stop", None),
    ],
)
async def test_the_vocabulary_after_a_mention_is_a_command(
    simulator: Simulator, slack: Connection, text: str, order: tuple[str, str] | None
) -> None:
    """`@bot stop` in a thread is a command; the same words elsewhere are a message."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.say("C0ROOM", text, thread="1767225600.000001")
        (update, *_) = await recorder.wait(1)
    assert (isinstance(update, Command) and (update.name, update.rest)) == (order or False)
    assert isinstance(update, Command | Message)
    assert update.address.thread == "1767225600.000001"


async def test_an_edit_is_another_event_of_the_message(simulator: Simulator, slack: Connection) -> None:
    """What a person changes later comes as edited, with a key of its own."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        ts = await simulator.say("C0ROOM", "one")
        await simulator.edit("C0ROOM", ts, "two")
        first, second = await recorder.wait(2)
    assert isinstance(first, Message)
    assert isinstance(second, Message)
    assert (second.text, second.edited, second.platform_id) == ("two", True, first.platform_id)
    assert first.key != second.key


@pytest.mark.parametrize("refusal", ["not_in_channel", "channel_not_found", ""])
async def test_a_question_where_the_bot_is_no_member_gets_a_notice(
    simulator: Simulator, slack: Connection, refusal: str
) -> None:
    """Slash commands work everywhere, but the answer would be shown nowhere, without a word."""
    await simulator.kick("C0ROOM", refusal=refusal)
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.slash("C0ROOM", "what is up?")
        await wait_for_update(recorder, Message)
        await simulator.wait_until_acknowledged()
    assert ["/invite" in one["text"] for one in simulator.world.notices] == [True] * bool(refusal)


async def test_slack_is_asked_once_whether_the_bot_is_a_member(
    simulator: Simulator, slack: Connection
) -> None:
    """Slack allows some apps one call of histories a minute, and further questions need none."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        for room in ("C0ROOM", "C0ROOM", "C0OTHER"):
            await simulator.slash(room, "what is up?")
        await recorder.wait(3)
        await simulator.wait_until_acknowledged()
    asked = [given["channel"] for method, given in simulator.calls if method == "conversations.history"]
    assert asked == ["C0ROOM", "C0OTHER"]


async def test_a_press_is_answered_to_its_person(simulator: Simulator, slack: Connection) -> None:
    """No other person sees the notice."""
    sent = await slack.sender.send(ROOM, make_reply("May I?", buttons=(Button(label="Yes", data="y"),)))
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.press("C0ROOM", sent.platform_id, "y", user="U0BOB")
        press = await wait_for_update(recorder, ButtonPress)
    await slack.sender.reply_privately(press, "noted <!here>")
    assert simulator.world.notices == [{"room": "C0ROOM", "user": "U0BOB", "text": "noted &lt;!here&gt;"}]
    assert [method for method, _ in simulator.calls][-1] == "response_url"


async def test_a_change_without_typing_is_no_edit(simulator: Simulator, slack: Connection) -> None:
    """Link previews and the bot's own edits change no user's message."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        ts = await simulator.say("C0ROOM", "see https://example.org")
        await simulator.unfurl("C0ROOM", ts)
        await simulator.edit("C0ROOM", ts, "see https://example.org")
        sent = await slack.sender.send(ROOM, make_reply("one"))
        await simulator.edit("C0ROOM", sent.platform_id, "two")
        await simulator.say("C0ROOM", "done")
        await recorder.wait(2)
    assert received_texts(recorder) == ["see https://example.org", "done"]


async def test_a_reaction_to_a_message_is_reported(simulator: Simulator, slack: Connection) -> None:
    """Users' added and removed reactions arrive; the bot's own do not."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        ts = await simulator.say("C0ROOM", "hello")
        await simulator.react("C0ROOM", ts, "eyes", user="U0BOT")
        await simulator.react("C0ROOM", ts, "+1::skin-tone-3", user="U0BOB")
        await simulator.react("C0ROOM", ts, "+1::skin-tone-3", user="U0BOB", added=False)
        _, put, taken = await recorder.wait(3)
    assert isinstance(put, Reaction)
    assert isinstance(taken, Reaction)
    assert (put.emoji, put.added, put.platform_id, put.author.id) == ("+1", True, ts, "U0BOB")
    assert (taken.added, put.key == taken.key, put.address.thread) == (False, False, ts)


async def test_a_sign_of_ours_takes_the_place_of_the_last(simulator: Simulator, slack: Connection) -> None:
    """Seen, then done, then none: one reaction at a time, and repeating one is no error."""
    ts = await simulator.say("C0ROOM", "hello")
    post = simulator.world.get_post("C0ROOM", ts)
    assert post is not None
    for reaction, shown in (
        (StatusReaction.SEEN, ["eyes"]),
        (StatusReaction.DONE, ["white_check_mark"]),
        (StatusReaction.FAILED, ["x"]),
    ):
        for _ in range(2):
            await slack.sender.react(ROOM, ts, reaction)
        assert list(post.reactions) == shown
    await slack.sender.react(ROOM, ts, None)
    assert list(post.reactions) == []


async def test_signs_that_come_at_once_are_put_in_order(simulator: Simulator, slack: Connection) -> None:
    """The later reaction stays, however long the calls take."""
    ts = await simulator.say("C0ROOM", "hello")
    reactions = (StatusReaction.SEEN, StatusReaction.DONE, StatusReaction.SEEN, StatusReaction.FAILED)
    await asyncio.gather(*(slack.sender.react(ROOM, ts, reaction) for reaction in reactions))
    post = simulator.world.get_post("C0ROOM", ts)
    assert post is not None
    assert list(post.reactions) == ["x"]


async def test_a_sign_of_an_earlier_process_is_found(simulator: Simulator, slack: Connection) -> None:
    """After a restart the earlier reaction of the bot is removed, and no reaction of users."""
    ts = await simulator.say("C0ROOM", "hello")
    for user in ("U0BOT", "U0BOB"):
        await simulator.react("C0ROOM", ts, "eyes", user=user)
    await slack.sender.react(ROOM, ts, StatusReaction.DONE)
    post = simulator.world.get_post("C0ROOM", ts)
    assert post is not None
    assert post.reactions == {"eyes": ["U0BOB"], "white_check_mark": ["U0BOT"]}


async def test_a_sign_needs_no_leave_to_look(simulator: Simulator, slack: Connection) -> None:
    """Without reactions:read the first reaction is assumed to be there, and is removed."""
    ts = await simulator.say("C0ROOM", "hello")
    await simulator.react("C0ROOM", ts, "eyes", user="U0BOT")
    await simulator.grant(ALL_SCOPES - {"reactions:read"})
    await slack.sender.react(ROOM, ts, StatusReaction.DONE)
    post = simulator.world.get_post("C0ROOM", ts)
    assert post is not None
    assert list(post.reactions) == ["white_check_mark"]


async def test_a_button_asks_for_words(simulator: Simulator, slack: Connection) -> None:
    """The modal opens at once; the press is handled when the modal is submitted, with its text."""
    sent = await slack.sender.send(ROOM, make_reply("May I?", buttons=(PROMPT_BUTTON,)))
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.press("C0ROOM", sent.platform_id, "apr_1:no", user="U0BOB")
        await simulator.wait_until(lambda: bool(simulator.open_modals()))
        (modal,) = simulator.open_modals()
        await simulator.submit("too risky")
        press = await wait_for_update(recorder, ButtonPress)
    assert modal.raw["blocks"][0]["label"]["text"] == "Why not?"
    assert len(modal.raw["private_metadata"]) <= 3000
    assert (press.data, press.comment, press.author.id) == ("apr_1:no", "too risky", "U0BOB")
    assert (press.platform_id, press.address) == (sent.platform_id, ROOM)
    await slack.sender.reply_privately(press, "noted")
    assert simulator.world.notices[-1]["user"] == "U0BOB"


async def test_a_button_asks_for_words_by_posts(simulator: Simulator, posted_to: Connection) -> None:
    """The same over HTTP: both posts are answered 200."""
    sent = await posted_to.sender.send(ROOM, make_reply("May I?", buttons=(PROMPT_BUTTON,)))
    recorder = UpdateRecorder()
    async with serve_webhook(posted_to, recorder.accept) as simulator.request_url:
        await simulator.press("C0ROOM", sent.platform_id, "apr_1:no")
        await simulator.submit("")
    (press,) = recorder.updates
    assert isinstance(press, ButtonPress)
    assert (press.data, press.comment, simulator.statuses) == ("apr_1:no", "", [[200], [200]])


@pytest.mark.parametrize(("error", "pressed"), [("not_enabled", True), ("expired_trigger_id", False)])
async def test_a_modal_that_does_not_open_prevents_no_decision(
    simulator: Simulator, posted_to: Connection, error: str, pressed: bool
) -> None:
    """The press counts without words; but a trigger that is spent was seen before, or comes too late."""
    sent = await posted_to.sender.send(ROOM, make_reply("May I?", buttons=(PROMPT_BUTTON,)))
    await simulator.fail(error, method="views.open")
    recorder = UpdateRecorder()
    async with serve_webhook(posted_to, recorder.accept) as simulator.request_url:
        await simulator.press("C0ROOM", sent.platform_id, "apr_1:no")
    assert [type(update) for update in recorder.updates] == [ButtonPress] * pressed


@pytest.mark.parametrize("answers", [True, False])
async def test_a_late_press_is_answered_with_a_notice(
    simulator: Simulator, posted_to: Connection, answers: bool
) -> None:
    """Also if the response_url has expired, as that of a press that waited for half an hour."""
    sent = await posted_to.sender.send(ROOM, make_reply("May I?", buttons=(PROMPT_BUTTON,)))
    simulator.world.trigger_seconds = -1.0
    simulator.server.refuses_responses = not answers
    recorder = UpdateRecorder()
    async with serve_webhook(posted_to, recorder.accept) as simulator.request_url:
        await simulator.press("C0ROOM", sent.platform_id, "apr_1:no", user="U0BOB")
    (notice,) = simulator.world.notices
    assert (notice["user"], "press the button again" in notice["text"]) == ("U0BOB", True)
    assert recorder.updates == []


@pytest.mark.parametrize("metadata", ["", "{}", "[]", '{"data": 1}', "x" * 3001])
def test_a_modal_that_is_not_bound_is_ignored(metadata: str) -> None:
    """Responses are validated as strictly as requests."""
    view = {"id": "V1", "callback_id": "dovecote_comment", "private_metadata": metadata}
    payload = {"type": "view_submission", "user": {"id": "U0ADA"}, "team": {"id": "T"}, "view": view}
    reported = json.loads(json.dumps({"type": "interactive", "payload": payload}))
    assert isinstance(codec.decode(reported, channel="chn_1", bot=codec.Bot(id="U0BOT")), IgnoredUpdate)
