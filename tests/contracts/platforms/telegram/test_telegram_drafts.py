"""Drafts and reactions, as far as this chat and this server support them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channels.errors import RateLimited, Rejected, Undeliverable
from channels.message import Address, Command, DraftText, Reaction, Reply, StatusReaction
from channels.port import Connection
from channels.telegram import plugin
from channels.telegram.api import connect
from channels.telegram.send.drafts import draft_id
from channels.telegram.send.reactions import Reactions
from channels.telegram.settings import TelegramSettings
from channels.telegram.simulator import Simulator, simulate
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from egress.guard import TRUSTED

ROOM = Address(channel="chn_contract", room="7")
GROUP = Address(channel="chn_contract", room="-42")


class SettableClock:
    """A clock that is set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock() -> SettableClock:
    """Return the platform's clock."""
    return SettableClock()


@pytest.fixture
async def simulator(clock: SettableClock) -> AsyncIterator[Simulator]:
    """Return a simulated Telegram with a private chat and a group."""
    async with simulate(clock=clock) as simulator:
        simulator.world.room(7)
        await simulator.group(-42)
        yield simulator


@pytest.fixture
async def telegram(simulator: Simulator) -> AsyncIterator[Connection]:
    """Return a connection that polls."""
    async with open_connection(plugin, simulator.settings(poll_seconds=5)) as connection:
        yield connection


async def test_a_private_chat_sees_a_preview(simulator: Simulator, telegram: Connection) -> None:
    """Each call shows the whole text so far, in one draft; the final message replaces it."""
    for text in ("Let me", "Let me **see**"):
        assert await telegram.sender.update_draft(ROOM, DraftText(key="dlv_1.0", text=text)) is None
    (draft,) = simulator.drafts(7)
    assert (draft.text, [entity["type"] for entity in draft.entities]) == ("Let me see", ["bold"])
    assert {one.number for one in simulator.world.drafts} == {draft_id("dlv_1.0")}
    assert simulator.messages() == []
    await telegram.sender.send(ROOM, Reply(text="Let me **see**.", key="dlv_1.0"))
    assert simulator.drafts(7) == []


async def test_a_chat_shows_one_preview(simulator: Simulator, telegram: Connection) -> None:
    """A draft of another reply replaces the one before."""
    for key in ("dlv_1.0", "dlv_2.0"):
        await telegram.sender.update_draft(ROOM, DraftText(key=key, text=key))
    assert [draft.text for draft in simulator.drafts(7)] == ["dlv_2.0"]


async def test_a_preview_goes_away_by_itself(
    simulator: Simulator, telegram: Connection, clock: SettableClock
) -> None:
    """Nothing is left of what was never finished."""
    await telegram.sender.update_draft(ROOM, DraftText(key="dlv_1.0", text="Let me"))
    clock.now += 29
    assert len(simulator.drafts(7)) == 1
    clock.now += 2
    assert simulator.drafts(7) == []


async def test_a_group_sees_a_message_that_grows(simulator: Simulator, telegram: Connection) -> None:
    """Where there are no previews the first call sends, and later ones edit; none is tried in vain."""
    shown = await telegram.sender.update_draft(GROUP, DraftText(key="dlv_1.0", text="Let"))
    assert shown is not None
    again = DraftText(key="dlv_1.0", text="Let me", platform_id=shown.platform_id, previous_text="Let")
    assert await telegram.sender.update_draft(GROUP, again) == shown
    await telegram.sender.edit(GROUP, shown.platform_id, Reply(text="Let me see.", key="dlv_1.0"))
    assert [(post.text, post.history) for post in simulator.messages()] == [
        ("Let me see.", ["Let", "Let me"])
    ]
    assert "sendMessageDraft" not in [name for name, _ in simulator.calls]


@pytest.mark.parametrize("refusal", ["method", "room"])
async def test_a_refused_preview_becomes_a_message(
    simulator: Simulator, telegram: Connection, refusal: str
) -> None:
    """An old server answers 404, which is not a bad token, and is not called a second time."""
    if refusal == "method":
        await simulator.forget("sendMessageDraft")
    else:
        await simulator.fail(
            400, method="sendMessageDraft", description="Bad Request: TEXTDRAFT_PEER_INVALID"
        )
    for number in range(2):
        shown = await telegram.sender.update_draft(ROOM, DraftText(key=f"dlv_{number}.0", text="Let me"))
        assert shown is not None
    assert [name for name, _ in simulator.calls].count("sendMessageDraft") == 1
    assert len(simulator.messages(7)) == 2


async def test_a_person_who_unblocks_the_bot_sees_previews_again(
    simulator: Simulator, telegram: Connection
) -> None:
    """That a chat was closed for the bot says nothing of previews."""
    await simulator.block(7)
    with pytest.raises(Undeliverable):
        await telegram.sender.update_draft(ROOM, DraftText(key="dlv_1.0", text="Let me"))
    await simulator.readmit(7)
    assert await telegram.sender.update_draft(ROOM, DraftText(key="dlv_2.0", text="Let me")) is None
    assert [draft.text for draft in simulator.drafts(7)] == ["Let me"]


async def test_a_preview_too_fast_is_delayed(simulator: Simulator, telegram: Connection) -> None:
    """A 429 is no refusal: the caller learns the delay and goes on with previews after it."""
    await simulator.fail(429, method="sendMessageDraft", retry_after=9)
    with pytest.raises(RateLimited) as caught:
        await telegram.sender.update_draft(ROOM, DraftText(key="dlv_1.0", text="Let me"))
    assert caught.value.retry_after == 9
    assert await telegram.sender.update_draft(ROOM, DraftText(key="dlv_1.0", text="Let me")) is None


async def test_text_too_long_for_a_preview_says_nothing_of_the_chat(telegram: Connection) -> None:
    """It is refused as it would be in a message, and the next preview is shown."""
    with pytest.raises(Rejected):
        await telegram.sender.update_draft(ROOM, DraftText(key="dlv_1.0", text="x" * 4097))
    assert await telegram.sender.update_draft(ROOM, DraftText(key="dlv_1.0", text="x")) is None


@pytest.mark.parametrize("key", ["", "dlv_1.0", "x" * 64])
def test_a_draft_has_a_number_telegram_takes(key: str) -> None:
    """The number is never 0, fits 31 bits, and is the same for the same key."""
    assert 0 < draft_id(key) == draft_id(key) < 2**31


async def test_signs_are_put_and_taken_away(simulator: Simulator, telegram: Connection) -> None:
    """Each reaction replaces the one before; None removes it."""
    number = await simulator.say(7, "please")
    seen = []
    for reaction in (*StatusReaction, None):
        await telegram.sender.react(ROOM, str(number), reaction)
        seen.append([one["emoji"] for one in simulator.world.posts[7, number].raw["reactions"]])
    assert seen == [["👀"], ["👍"], ["👎"], []]


async def test_a_chat_that_allows_other_emoji_gets_one_of_those(
    simulator: Simulator, telegram: Connection
) -> None:
    """A refused emoji is remembered for its chat; where none is allowed, none is tried twice."""
    await simulator.restrict(-42, reactions=["👌"])
    number = str(await simulator.say(-42, "please", user=7))
    await telegram.sender.react(GROUP, number, StatusReaction.DONE)
    assert simulator.world.posts[-42, int(number)].raw["reactions"] == [{"type": "emoji", "emoji": "👌"}]
    await telegram.sender.react(GROUP, number, StatusReaction.DONE)
    for _ in range(2):
        with pytest.raises(Rejected):
            await telegram.sender.react(GROUP, number, StatusReaction.SEEN)
    tried = [given["reaction"] for name, given in simulator.calls if name == "setMessageReaction"]
    assert len(tried) == 4


async def test_a_chat_that_allows_a_reaction_again_gets_it(simulator: Simulator) -> None:
    """An administrator changed the chat: what it refused is tried again later."""
    number = str(await simulator.say(-42, "please", user=7))
    async with connect(TelegramSettings.model_validate(simulator.settings()), TRUSTED) as api:
        reactions = Reactions(api, refused_seconds=0.0)
        await simulator.restrict(-42, reactions=[])
        with pytest.raises(Rejected):
            await reactions.set(GROUP, number, StatusReaction.SEEN)
        await simulator.restrict(-42)
        await reactions.set(GROUP, number, StatusReaction.SEEN)
    assert simulator.world.posts[-42, int(number)].raw["reactions"] == [{"type": "emoji", "emoji": "👀"}]


async def test_a_reaction_to_a_message_that_is_gone_is_rejected(
    simulator: Simulator, telegram: Connection
) -> None:
    """One refused reaction does not disable them for the chat: the next message gets its reaction."""
    with pytest.raises(Rejected):
        await telegram.sender.react(ROOM, "4711", StatusReaction.SEEN)
    number = str(await simulator.say(7, "please"))
    await telegram.sender.react(ROOM, number, StatusReaction.SEEN)


async def test_a_persons_reaction_arrives(simulator: Simulator, telegram: Connection) -> None:
    """Telegram sends reactions only when they are requested by name; the bot's own are ignored."""
    sent = await telegram.sender.send(GROUP, Reply(text="done", key="dlv_1.0"))
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.wait_until(lambda: "getUpdates" in simulator.answered_methods)
        await simulator.react(-42, int(sent.platform_id), "👍", user=7)
        await simulator.react(-42, int(sent.platform_id), None, user=7)
        first, second = await recorder.wait(2)
    assert isinstance(first, Reaction)
    assert isinstance(second, Reaction)
    assert (first.emoji, first.added, first.platform_id) == ("👍", True, sent.platform_id)
    assert (second.emoji, second.added, second.author.id) == ("👍", False, "7")


async def test_a_command_has_nothing_to_answer(simulator: Simulator, telegram: Connection) -> None:
    """Telegram wants no answer to a command itself; the answer is a message like any other."""
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.say(7, "/status")
        (command,) = await recorder.wait(1)
    assert isinstance(command, Command)
    await telegram.sender.reply_privately(command, "fine")
    assert "answerCallbackQuery" not in [name for name, _ in simulator.calls]


async def test_the_menu_of_commands_is_set_once(simulator: Simulator) -> None:
    """It is compared first, so a restart changes nothing."""
    for _ in range(2):
        recorder = UpdateRecorder()
        async with open_connection(plugin, simulator.settings()) as bot, receiving(bot, recorder):
            await simulator.say(7, "hello")
            await recorder.wait(1)
    assert [name for name, _ in simulator.calls].count("setMyCommands") == 1
    assert {"stop", "queue", "help"} <= {one["command"] for one in simulator.methods.commands}


async def test_a_menu_that_cannot_be_set_does_not_stop_the_bot(simulator: Simulator) -> None:
    """The bot receives all the same."""
    await simulator.forget("getMyCommands")
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings()) as bot, receiving(bot, recorder):
        await simulator.say(7, "hello")
        await recorder.wait(1)
    assert recorder.states[-1] is True
