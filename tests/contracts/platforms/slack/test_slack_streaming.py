"""Streamed replies at Slack: native streams, their replacement, status, and lookup."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from channels.errors import Ambiguous, RateLimited, Unreachable, Unsupported
from channels.message import (
    Address,
    Button,
    DraftText,
    Reply,
    SentMessage,
    StepState,
    ToolStep,
    ToolSteps,
)
from channels.port import Connection
from channels.slack import plugin
from channels.slack.send import lookup
from channels.slack.simulator import Post, Simulator
from channels.slack.simulator.api.rate_limits import Rate
from channels.testing.connections import open_connection
from slack_connections import ROOM, make_reply, thread_address

KEY = "dlv_1.0"
DRAFT_KEY = "draft_1.0"
LONG_AGO = datetime.now(UTC) - timedelta(hours=1)


async def show_drafts(
    connection: Connection,
    address: Address,
    *texts: str,
    asker: str = "U0ADA",
    before: SentMessage | None = None,
) -> SentMessage:
    """Show texts one after the other, as a draft does; returns the last answer."""
    sent, said = before, ""
    for text in texts:
        number = sent.platform_id if sent else None
        showing = DraftText(
            key=DRAFT_KEY, text=text, previous_text=said, platform_id=number, recipient_id=asker
        )
        sent, said = await connection.sender.update_draft(address, showing), text
    assert sent is not None
    return sent


def methods(simulator: Simulator) -> list[str]:
    """Return what of the chat methods was called."""
    return [method.removeprefix("chat.") for method, _ in simulator.calls if method.startswith("chat.")]


@pytest.fixture(name="thread")
async def user_thread(simulator: Simulator) -> Address:
    """Return a thread that a user began in the channel."""
    return thread_address(await simulator.say("C0ROOM", "tell me"))


async def test_a_reply_is_streamed_and_ended(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """Each call appends the new text; the edit stops the stream with the full text and its buttons."""
    sent = await show_drafts(slack, thread, "one ", "one **two** ", "one **two** three")
    (post,) = simulator.messages()
    assert (post.thread, post.streaming is not None) == (thread.thread, True)
    final = Reply(text="one **two** three.", key=KEY, buttons=(Button(label="A", data="a"),))
    ended = await slack.sender.edit(thread, sent.platform_id, final)
    assert methods(simulator) == ["startStream", "appendStream", "appendStream", "stopStream", "update"]
    added = [given["markdown_text"] for method, given in simulator.calls if method == "chat.appendStream"]
    assert added == ["**two** ", "three"]
    assert (post.text, len(post.buttons), post.streaming) == ("one two three.", 1, None)
    assert ended == SentMessage(platform_id=post.ts)
    assert await slack.sender.edit(thread, sent.platform_id, final) == ended


async def test_another_process_ends_a_stream(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """The id alone identifies a stream."""
    sent = await show_drafts(slack, thread, "one")
    async with open_connection(plugin, simulator.settings()) as other:
        await other.sender.edit(thread, sent.platform_id, make_reply("one and all"))
    (post,) = simulator.messages()
    assert (post.text, post.streaming) == ("one and all", None)


async def test_nothing_in_a_stream_notifies_anybody(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """What a model writes is escaped in streams too, wherever the pieces begin and end."""
    sent = await show_drafts(slack, thread, "<", "<!chan", "<!channel> & <@U0BOB> &lt;!here&gt;")
    (post,) = simulator.messages()
    assert (post.notified_targets, post.text) == ([], "<!channel> & <@U0BOB> &lt;!here&gt;")
    await slack.sender.edit(thread, sent.platform_id, make_reply("<!channel> `<!here>` [x](<!everyone>)"))
    assert post.notified_targets == []


async def test_a_long_piece_fits_slacks_calls(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """A call holds 12 000 encoded characters, and no entity is cut in two."""
    await show_drafts(slack, thread, "<" * 3900 + "&" * 100)
    (post,) = simulator.messages()
    assert post.text == "<" * 3900 + "&" * 100
    assert methods(simulator) == ["startStream", "appendStream"]


async def test_a_stream_that_slack_ended_goes_on_by_updates(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """When Slack accepts no more chunks after some minutes, the same message grows on and loses nothing."""
    sent = await show_drafts(slack, thread, "one")
    await simulator.advance(301)
    showing = DraftText(key=KEY, text="one two", previous_text="one", platform_id=sent.platform_id)
    later = await slack.sender.update_draft(thread, showing)
    assert later is not None
    await slack.sender.update_draft(
        thread, DraftText(key=KEY, text="one two three", platform_id=later.platform_id)
    )
    await slack.sender.edit(thread, later.platform_id, make_reply("all"))
    (post,) = simulator.messages()
    assert (post.history[-2:], post.text) == (["one two", "one two three"], "all")


async def test_a_text_that_is_retracted_is_shown_again(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """A stream only grows: when a turn begins again, the message is updated instead."""
    await show_drafts(slack, thread, "the first try", "begun anew")
    (post,) = simulator.messages()
    assert (post.text, post.streaming) == ("begun anew", None)


@pytest.mark.parametrize(
    ("error", "status", "everywhere"),
    [("unknown_method", 200, True), ("none", 404, True), ("channel_type_not_supported", 200, False)],
)
async def test_where_streams_are_refused_a_message_grows(
    simulator: Simulator, slack: Connection, thread: Address, error: str, status: int, everywhere: bool
) -> None:
    """The caller sees no error, the refusal is remembered for the room or the workspace."""
    await simulator.fail(error, status=status, method="chat.startStream")
    sent = await show_drafts(slack, thread, "one", "one two")
    await slack.sender.edit(thread, sent.platform_id, make_reply("one two three"))
    await show_drafts(slack, thread, "again")
    assert methods(simulator) == ["startStream", "postMessage", "update", "update", "postMessage"]
    elsewhere = thread_address(await simulator.say("C0OTHER", "and me"), "C0OTHER")
    await show_drafts(slack, elsewhere, "here")
    assert ("startStream" in methods(simulator)[1:]) is not everywhere
    assert simulator.messages()[0].history == ["one", "one two"]


async def test_without_an_asker_nothing_is_streamed_in_a_channel(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """A stream in a channel is addressed to a user; without one a message grows."""
    await show_drafts(slack, thread, "", "one", asker="")
    assert methods(simulator) == ["postMessage", "update"]


async def test_an_answer_outside_a_thread_is_streamed(simulator: Simulator, slack: Connection) -> None:
    """A slash command is answered outside a thread, by a stream too."""
    sent = await show_drafts(slack, ROOM, "one", "one two")
    await slack.sender.edit(ROOM, sent.platform_id, make_reply("one two three"))
    (post,) = simulator.messages()
    assert (post.thread, post.text, post.streaming) == (None, "one two three", None)


TABLE = "# Costs\n\n| part | costs |\n|---|---|\n| a & b | [10](https://x.test/?a=1&b=2) |\n"


async def test_tables_and_headings_survive_the_end_of_a_stream(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """The final text is Markdown as the streamed text was, with its buttons; links keep their `&`."""
    sent = await show_drafts(slack, thread, TABLE)
    (post,) = simulator.messages()
    assert post.raw["text"] == TABLE
    await slack.sender.edit(
        thread, sent.platform_id, make_reply(TABLE, buttons=(Button(label="A", data="a"),))
    )
    markdown, actions = post.raw["blocks"]
    assert (markdown["type"], markdown["text"], actions["type"]) == ("markdown", TABLE, "actions")
    assert "```" not in json.dumps(post.raw["blocks"])


async def test_a_stream_whose_end_slack_refuses_is_plain_text(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """A workspace without Markdown blocks gets the words."""
    sent = await show_drafts(slack, thread, "one")
    await simulator.fail("invalid_blocks", method="chat.update")
    await slack.sender.edit(thread, sent.platform_id, make_reply("one **two**"))
    (post,) = simulator.messages()
    assert post.text == "one **two**"


async def test_a_private_thread_is_streamed_without_naming_anybody(
    simulator: Simulator, slack: Connection
) -> None:
    """In a private chat the recipient is known."""
    thread = await simulator.say("D0ADA", "tell me")
    await show_drafts(slack, thread_address(thread, "D0ADA"), "one", asker="")
    assert methods(simulator) == ["startStream"]


async def test_a_stream_that_is_too_fast_says_when(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """A limit is no refusal: the caller waits, and the stream goes on."""
    simulator.rate_limits.rates["chat.appendStream"] = Rate(burst=1, a_second=0.1)
    sent = await show_drafts(slack, thread, "one", "one two")
    showing = DraftText(key=KEY, text="one two three", previous_text="one two", platform_id=sent.platform_id)
    with pytest.raises(RateLimited) as caught:
        await slack.sender.update_draft(thread, showing)
    assert (caught.value.scope, 8 < caught.value.retry_after <= 10) == ("room", True)
    await simulator.advance(10)
    await slack.sender.update_draft(thread, showing)
    assert simulator.messages()[0].text == "one two three"


async def test_a_private_thread_shows_that_we_are_at_work(simulator: Simulator, slack: Connection) -> None:
    """The status stays until the reply, which clears it; it can be set again."""
    thread = thread_address(await simulator.say("D0ADA", "tell me"), "D0ADA")
    await slack.sender.typing(thread)
    assert simulator.world.status("D0ADA", thread.thread or "") == "is working…"
    await slack.sender.send(thread, make_reply("done"))
    assert simulator.world.status("D0ADA", thread.thread or "") == ""


async def test_a_status_that_the_answer_overtook_does_not_stay(
    simulator: Simulator, slack: Connection
) -> None:
    """Whichever call Slack handles first, no status remains once the answer is there."""
    thread = thread_address(await simulator.say("D0ADA", "tell me"), "D0ADA")
    for number in range(20):
        said = slack.sender.send(thread, Reply(text=str(number), key=f"dlv_{number}.0"))
        await asyncio.gather(slack.sender.typing(thread), said)
        assert simulator.world.status("D0ADA", thread.thread or "") == ""


@pytest.mark.parametrize("thread", [None, "1767225600.000001"])
async def test_where_slack_has_no_status_nothing_happens(
    simulator: Simulator, slack: Connection, thread: str | None
) -> None:
    """Outside a thread, and where Slack refuses it, there is none: it is tried once at the most."""
    for _ in range(3):
        await slack.sender.typing(Address(channel="chn_contract", room="C0ROOM", thread=thread))
    assert len(simulator.calls) == (2 if thread else 1)  # the first is auth.test


@pytest.mark.parametrize("in_a_thread", [True, False])
@pytest.mark.parametrize("carried_out", [True, False])
async def test_an_ambiguous_send_is_found(
    simulator: Simulator, slack: Connection, thread: Address, *, in_a_thread: bool, carried_out: bool
) -> None:
    """The history has the message under the delivery's key."""
    address = thread if in_a_thread else ROOM
    await slack.sender.send(address, Reply(text="before", key="dlv_0.0"))
    await simulator.cut(method="chat.postMessage", after=carried_out)
    with pytest.raises(Ambiguous):
        await slack.sender.send(address, make_reply("hello"))
    await slack.sender.send(address, Reply(text="after", key="dlv_2.0"))
    found = await slack.sender.find(address, KEY, since=LONG_AGO)
    said = [post for post in simulator.messages() if post.text == "hello"]
    assert found == (SentMessage(platform_id=said[0].ts) if carried_out else None)


async def test_a_draft_is_not_taken_for_the_reply(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """A partial text is found under the key only once it is complete."""
    sent = await show_drafts(slack, ROOM, "half", asker="")
    assert await slack.sender.find(ROOM, KEY, since=LONG_AGO) is None
    await slack.sender.edit(ROOM, sent.platform_id, make_reply("all"))
    assert await slack.sender.find(ROOM, KEY, since=LONG_AGO) == sent


@pytest.mark.parametrize("hidden", [None, {}, {"event_type": ""}])
async def test_a_hidden_key_is_not_an_absent_message(
    simulator: Simulator, slack: Connection, hidden: object
) -> None:
    """When Slack blanks the metadata of the bot's messages, it is not known whether one was sent."""
    await slack.sender.send(ROOM, make_reply("hello"))
    (post,) = simulator.messages()
    post.raw["metadata"] = hidden
    with pytest.raises(Unsupported):
        await slack.sender.find(ROOM, KEY, since=LONG_AGO)


async def test_a_key_that_the_app_may_not_see_is_not_an_absent_message(
    simulator: Simulator, slack: Connection
) -> None:
    """Slack shows no metadata to apps without access: that a message is missing cannot be known."""
    await slack.sender.send(ROOM, make_reply("hello"))
    await simulator.hide_metadata()
    with pytest.raises(Unsupported):
        await slack.sender.find(ROOM, KEY, since=LONG_AGO)


async def test_a_draft_is_found_by_its_own_key(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """An unanswered draft that was posted can be looked up."""
    sent = await show_drafts(slack, ROOM, "half", asker="")
    assert await slack.sender.find(ROOM, DRAFT_KEY, since=LONG_AGO) == sent


async def test_a_long_history_is_read_in_pages_to_an_end(simulator: Simulator, slack: Connection) -> None:
    """A message on a later page is found; in a history that is too long the result is uncertain."""
    sent = await slack.sender.send(ROOM, make_reply("hello"))
    for number in range(lookup.PAGE_SIZE):
        simulator.world.post("C0ROOM", "U0ADA", {"text": str(number)})
    assert await slack.sender.find(ROOM, KEY, since=LONG_AGO) == sent
    for number in range(lookup.PAGE_SIZE * lookup.MAX_PAGES):
        simulator.world.post("C0ROOM", "U0ADA", {"text": str(number)})
    with pytest.raises(Unreachable):
        await slack.sender.find(ROOM, KEY, since=LONG_AGO)
    assert await slack.sender.find(ROOM, "dlv_9.9", since=datetime.now(UTC) + timedelta(days=1)) is None


def test_a_post_has_no_stream_of_its_own() -> None:
    """Only what was started as a stream is one."""
    assert Post("C0ROOM", "1.0", "U0BOT", {}).streaming is None


def steps_of(*states: StepState, before: SentMessage | None = None, ended: bool = False) -> ToolSteps:
    """Return a turn's steps in these states."""
    steps = tuple(
        ToolStep(id=f"call{number}", title=f"bash: <make> {number}", state=state)
        for number, state in enumerate(states)
    )
    known = before.platform_id if before else None
    return ToolSteps(key="steps_1", steps=steps, platform_id=known, recipient_id="U0ADA", has_ended=ended)


async def test_tool_calls_are_the_tasks_of_a_plan(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """They appear, change and stay in one streamed message, which has metadata when it ends."""
    show, running, done = slack.sender.show_steps, StepState.RUNNING, StepState.DONE
    sent = await show(thread, steps_of(running))
    (post,) = simulator.messages()
    assert (post.plan_title, post.tasks["call0"]) == ("Working", ("bash: <make> 0", "in_progress"))
    await show(thread, steps_of(done, running, before=sent))
    ended = await show(thread, steps_of(done, StepState.FAILED, before=sent, ended=True))
    assert (ended, post.plan_title, post.streaming) == (sent, "Steps", None)
    assert [status for _, status in post.tasks.values()] == ["complete", "error"]
    assert methods(simulator) == ["startStream", "appendStream", "stopStream"]
    since = datetime.now(UTC) - timedelta(minutes=5)
    assert await slack.sender.find(thread, KEY, since=since) is None


async def test_steps_whose_stream_slack_ended_become_a_list(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """The tasks would be in progress for ever: they are replaced by text, and no call follows."""
    sent = await slack.sender.show_steps(thread, steps_of(StepState.RUNNING))
    await simulator.advance(301)
    last = steps_of(StepState.DONE, StepState.FAILED, before=sent, ended=True)
    assert await slack.sender.show_steps(thread, last) is None
    (post,) = simulator.messages()
    assert (post.text, post.tasks) == ("✓ bash: <make> 0\n✗ bash: <make> 1", {})


async def test_steps_are_not_shown_where_slack_refuses_streams(
    simulator: Simulator, slack: Connection, thread: Address
) -> None:
    """Neither without a recipient in a channel, nor where a stream was refused."""
    anonymous = ToolSteps(key="k", steps=steps_of(StepState.RUNNING).steps)
    assert await slack.sender.show_steps(thread, anonymous) is None
    await simulator.fail("not_allowed", method="chat.startStream")
    for _ in range(2):
        assert await slack.sender.show_steps(thread, steps_of(StepState.RUNNING)) is None
    assert methods(simulator) == ["startStream"]
    assert simulator.messages() == []
