"""The simulated Telegram follows the Bot API's documentation, seen over HTTP and without our adapter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession, FormData

from channels.telegram.simulator import Simulator, simulate
from channels.telegram.simulator.failure import ApiFailure
from channels.telegram.simulator.wording import parse_text

FORUM = -1_000_000_000_042


class BotClient:
    """Calls the simulator as any bot would."""

    def __init__(self, session: ClientSession, simulator: Simulator) -> None:
        self._session = session
        self.simulator = simulator
        self.token = simulator.token

    async def call(self, method: str, **arguments: Any) -> Any:
        """Call a method with JSON; return the result, or the error's code, text and parameters."""
        url = f"{self.simulator.url}/bot{self.token}/{method}"
        async with self._session.post(url, json=arguments) as response:
            answer = await response.json()
        assert answer["ok"] is (response.status == 200)
        if answer["ok"]:
            return answer["result"]
        assert answer["error_code"] == response.status
        return (response.status, answer["description"], answer.get("parameters", {}))

    async def control(self, act: str, **arguments: Any) -> Any:
        """Control users and faults from outside."""
        async with self._session.post(f"{self.simulator.url}/_control/{act}", json=arguments) as response:
            answer = await response.json()
        return answer["result"] if response.status == 200 else (response.status, answer)

    async def get(self, path: str) -> tuple[int, Any]:
        """Fetch JSON or a file."""
        async with self._session.get(f"{self.simulator.url}{path}") as response:
            body = await response.read()
        return response.status, json.loads(body) if body[:1] in {b"{", b"["} else body

    async def post_form(self, method: str, form: FormData) -> Any:
        """Call a method with a multipart form."""
        async with self._session.post(
            f"{self.simulator.url}/bot{self.token}/{method}", data=form
        ) as response:
            return (await response.json()).get("result")


@pytest.fixture
async def bot() -> AsyncIterator[BotClient]:
    """Return a client of a Telegram where person 7 has a private chat with the bot."""
    async with simulate() as simulator, ClientSession() as session:
        simulator.world.room(7)
        yield BotClient(session, simulator)


async def test_a_bot_learns_who_it_is(bot: BotClient) -> None:
    """`getMe` names the bot by any spelling of the method."""
    assert (await bot.call("getme"))["username"] == (await bot.call("getMe"))["username"] == "dovecote_bot"


@pytest.mark.parametrize(("token", "status"), [("1:wrong", 401), ("nonsense", 404)])
async def test_a_token_is_checked(bot: BotClient, token: str, status: int) -> None:
    """A token of the right shape is unauthorized, any other is not found."""
    bot.token = token
    assert (await bot.call("getMe"))[0] == status


async def test_updates_stay_until_they_are_confirmed(bot: BotClient) -> None:
    """An offset confirms all earlier updates, and only those."""
    for text in "abc":
        await bot.simulator.say(7, text)
    first = await bot.call("getUpdates")
    assert [update["message"]["text"] for update in first] == ["a", "b", "c"]
    rest = await bot.call("getUpdates", offset=first[1]["update_id"])
    assert [update["message"]["text"] for update in rest] == ["b", "c"]
    assert [update["message"]["text"] for update in await bot.call("getUpdates", offset=-1, limit=5)] == ["c"]
    assert await bot.call("getUpdates", offset=first[2]["update_id"] + 1) == []


async def test_a_long_poll_is_answered_by_what_is_said(bot: BotClient) -> None:
    """A poll that waits returns as soon as there is something."""
    poll = asyncio.create_task(bot.call("getUpdates", timeout=30))
    await bot.simulator.wait_until(lambda: bool(bot.simulator.calls))
    await bot.simulator.say(7, "now")
    async with asyncio.timeout(10):
        assert (await poll)[0]["message"]["text"] == "now"


async def test_a_second_poll_ends_the_first(bot: BotClient) -> None:
    """Only one poller is allowed; the older one gets an error."""
    first = asyncio.create_task(bot.call("getUpdates", timeout=30))
    await bot.simulator.wait_until(lambda: bool(bot.simulator.calls))
    await bot.call("getUpdates")
    async with asyncio.timeout(10):
        assert (await first)[0] == 409


async def test_a_webhook_forbids_polling(bot: BotClient) -> None:
    """While updates are posted they cannot be polled."""
    await bot.call("setWebhook", url="http://127.0.0.1:9/")
    assert (await bot.call("getUpdates"))[0] == 409
    await bot.call("deleteWebhook")
    assert await bot.call("getUpdates") == []


@pytest.mark.parametrize(
    "webhook", [{"url": "http://bot.test/"}, {"url": "https://bot.test/", "secret_token": "ü"}]
)
async def test_an_odd_webhook_is_refused(bot: BotClient, webhook: dict[str, str]) -> None:
    """Webhooks are https, and secrets plain letters."""
    assert (await bot.call("setWebhook", **webhook))[0] == 400


async def test_only_wanted_kinds_of_update_come(bot: BotClient) -> None:
    """`allowed_updates` holds until it is set again."""
    await bot.call("getUpdates", allowed_updates=["callback_query"])
    await bot.simulator.say(7, "unheard")
    assert await bot.call("getUpdates") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": ""}, "message text is empty"),
        ({"text": " \n"}, "message text is empty"),
        ({"text": "x" * 4097}, "message is too long"),
        ({"text": "😀" * 2049}, "message is too long"),
        ({"chat_id": 99, "text": "x"}, "chat not found"),
        ({"text": "x", "message_thread_id": 5}, "message thread not found"),
        ({"text": "x", "reply_parameters": {"message_id": 99}}, "message to be replied not found"),
        ({"text": "x", "entities": [{"type": "bold", "offset": 0, "length": 2}]}, "can't parse entities"),
        ({"text": "<b>x", "parse_mode": "HTML"}, "can't find end tag"),
        ({"text": "<x>x</x>", "parse_mode": "HTML"}, "unsupported start tag"),
        ({"text": "a.b", "parse_mode": "MarkdownV2"}, "character '.' is reserved"),
        ({"text": "*x", "parse_mode": "MarkdownV2"}, "can't find end of the entity"),
        (
            {"text": "x", "reply_markup": {"inline_keyboard": [[{"text": "a", "callback_data": "x" * 65}]]}},
            "BUTTON_DATA",
        ),
        ({"text": "x", "reply_markup": "{"}, "can't parse reply_markup"),
    ],
)
async def test_what_telegram_refuses_is_refused(
    bot: BotClient, arguments: dict[str, Any], words: str
) -> None:
    """A message that real bots cannot send cannot be sent here."""
    status, description, _ = await bot.call("sendMessage", **{"chat_id": 7, **arguments})
    assert status == 400
    assert words in description
    assert bot.simulator.messages() == []


@pytest.mark.parametrize(
    ("text", "mode", "shown", "kinds"),
    [
        ("<b>a</b> &lt; <i>b</i>", "HTML", "a < b", ["bold", "italic"]),
        ('<a href="https://x.test/">x</a><pre>y</pre>', "HTML", "xy", ["text_link", "pre"]),
        (
            "*a* _b_ __c__ ~d~ ||e||",
            "MarkdownV2",
            "a b c d e",
            ["bold", "italic", "underline", "strikethrough", "spoiler"],
        ),
        ("[x](https://x.test/) `c` a\\.b", "MarkdownV2", "x c a.b", ["text_link", "code"]),
        ("```py\nx\n```", "MarkdownV2", "x", ["pre"]),
    ],
)
def test_formatted_text_is_read(text: str, mode: str, shown: str, kinds: list[str]) -> None:
    """Both parse modes give text and entities."""
    read_text, entities = parse_text(text, mode, None)
    assert (read_text, [entity["type"] for entity in entities]) == (shown, kinds)


@pytest.mark.parametrize(
    "entities",
    [
        [{"type": "bold", "offset": 1, "length": 1}],
        [{"type": "bold", "offset": 0, "length": 3}, {"type": "italic", "offset": 2, "length": 2}],
        [{"type": "code", "offset": 0, "length": 4}, {"type": "bold", "offset": 2, "length": 1}],
        [{"type": "text_link", "offset": 0, "length": 2}],
        [{"type": "wobble", "offset": 0, "length": 2}],
        "[",
        {},
    ],
)
def test_entities_that_make_no_sense_are_refused(entities: object) -> None:
    """Entities cut no character, overlap only when nested, and are complete."""
    with pytest.raises(ApiFailure, match="can't parse entities"):
        parse_text("😀abcd", "", entities)


async def test_an_edit_to_the_same_is_refused(bot: BotClient) -> None:
    """Telegram's well-known complaint."""
    sent = await bot.call("sendMessage", chat_id=7, text="one")
    where = {"chat_id": 7, "message_id": sent["message_id"]}
    assert (await bot.call("editMessageText", **where, text="two"))["text"] == "two"
    assert "message is not modified" in (await bot.call("editMessageText", **where, text="two"))[1]
    assert bot.simulator.messages(7)[0].history == ["one"]


async def test_only_own_messages_can_be_edited_and_deleted(bot: BotClient) -> None:
    """A person's message is theirs."""
    number = await bot.simulator.say(7, "mine")
    assert (await bot.call("editMessageText", chat_id=7, message_id=number, text="x"))[0] == 400
    sent = await bot.call("sendMessage", chat_id=7, text="bye")
    assert await bot.call("deleteMessage", chat_id=7, message_id=sent["message_id"]) is True
    assert bot.simulator.messages() == []


async def test_a_press_is_answered_once(bot: BotClient) -> None:
    """A second answer comes too late."""
    markup = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]}
    sent = await bot.call("sendMessage", chat_id=7, text="?", reply_markup=markup)
    number = await bot.control("press", chat=7, message=sent["message_id"], data="y")
    (update,) = await bot.call("getUpdates")
    assert (update["callback_query"]["id"], update["callback_query"]["data"]) == (number, "y")
    assert await bot.call("answerCallbackQuery", callback_query_id=number, text="ok") is True
    assert (await bot.call("answerCallbackQuery", callback_query_id=number))[0] == 400
    assert bot.simulator.answers(number) == {"text": "ok", "alert": False}


async def test_files_are_uploaded_and_downloaded(bot: BotClient) -> None:
    """A document goes in by multipart and comes out by its path."""
    form = FormData({"chat_id": "7", "document": "attach://part", "caption": "c"})
    form.add_field("part", b"bytes", filename="a.txt", content_type="text/plain")
    sent = await bot.post_form("sendDocument", form)
    described = await bot.call("getFile", file_id=sent["document"]["file_id"])
    assert await bot.get(f"/file/bot{bot.token}/{described['file_path']}") == (200, b"bytes")
    assert (await bot.get(f"/file/bot1:x/{described['file_path']}"))[0] == 401
    assert (await bot.call("getFile", file_id="none"))[0] == 400


async def test_rates_are_kept_for_each_room(bot: BotClient) -> None:
    """One message a second and room; the refusal states the wait."""
    bot.simulator.world.room(8)
    await bot.control("limit", room_per_second=1)
    await bot.call("sendMessage", chat_id=7, text="1")
    assert (await bot.call("sendMessage", chat_id=7, text="2"))[2] == {"retry_after": 1}
    assert (await bot.call("sendMessage", chat_id=8, text="1"))["text"] == "1"
    assert bot.simulator.rate_limits.refused == 1


async def test_a_bot_that_was_thrown_out_may_not_speak(bot: BotClient) -> None:
    """Blocked and kicked are 403."""
    await bot.control("group", chat=-5)
    await bot.control("kick", chat=-5)
    await bot.control("block", chat=7)
    assert [(await bot.call("sendMessage", chat_id=chat, text="x"))[0] for chat in (7, -5)] == [403, 403]


async def test_a_group_moves(bot: BotClient) -> None:
    """The old room names the new one, in an update and in the refusal."""
    await bot.control("group", chat=-5)
    new = await bot.control("migrate", chat=-5)
    updates = await bot.call("getUpdates")
    assert updates[0]["message"]["migrate_to_chat_id"] == new
    assert (await bot.call("sendMessage", chat_id=-5, text="x"))[2] == {"migrate_to_chat_id": new}


async def test_topics_have_their_own_messages(bot: BotClient) -> None:
    """A message of a topic has its id, and a closed topic accepts none."""
    await bot.control("group", chat=FORUM, forum=True)
    topic = await bot.control("topic", chat=FORUM)
    await bot.control("say", chat=FORUM, text="in", thread=topic, user=7)
    (update,) = await bot.call("getUpdates")
    assert (update["message"]["message_thread_id"], update["message"]["is_topic_message"]) == (topic, True)
    await bot.simulator.close_topic(FORUM, topic)
    assert (
        "TOPIC_CLOSED" in (await bot.call("sendMessage", chat_id=FORUM, message_thread_id=topic, text="x"))[1]
    )


async def test_faults_happen_as_often_as_asked_for(bot: BotClient) -> None:
    """So many failures, then all is well; a cut connection may have done its work."""
    await bot.control("fail", status=502, times=2, method="sendMessage")
    answers = [await bot.call("sendMessage", chat_id=7, text="x") for _ in range(3)]
    assert [answer[0] if isinstance(answer, tuple) else 200 for answer in answers] == [502, 502, 200]
    await bot.control("cut", method="sendMessage")
    with pytest.raises(ClientError):
        await bot.call("sendMessage", chat_id=7, text="lost answer")
    assert [post.text for post in bot.simulator.messages()] == ["x", "lost answer"]


async def test_another_process_can_drive_it(bot: BotClient) -> None:
    """Sending, waiting and reading work over HTTP; a mistake gets an error."""
    number = await bot.control("say", chat=7, text="hello")
    await bot.call("sendMessage", chat_id=7, text="good day", reply_parameters={"message_id": number})
    status, said = await bot.get("/control/wait?chat=7&count=1")
    assert (status, [message["text"] for message in said]) == (200, ["good day"])
    assert (await bot.get("/control/wait?count=2&seconds=0.01"))[0] == 408
    assert (await bot.get("/control/messages?chat=8"))[1] == []
    assert [name for name, _ in (await bot.get("/_control/calls"))[1]] == ["sendMessage"]
    await bot.call("sendMessageDraft", chat_id=7, draft_id=5, text="and")
    assert [draft["text"] for draft in (await bot.get("/_control/state"))[1]["drafts"]] == ["and"]
    assert (await bot.control("fly"))[0] == 404
    assert (await bot.control("say", chat=7))[0] == 400


async def test_privacy_mode_keeps_what_does_not_concern_the_bot() -> None:
    """In groups, only commands, mentions and replies are delivered."""
    async with simulate(privacy=True) as simulator, ClientSession() as session:
        bot = BotClient(session, simulator)
        for text in ("lunch?", "/help", "ask @dovecote_bot"):
            await simulator.say(-5, text, user=7)
        await simulator.say(7, "in private")
        texts = [update["message"]["text"] for update in await bot.call("getUpdates")]
    assert texts == ["/help", "ask @dovecote_bot", "in private"]


async def test_commands_and_reactions_are_kept(bot: BotClient) -> None:
    """The menu of commands can be set and read; a reaction is seen at its message."""
    assert await bot.call("setMyCommands", commands=[{"command": "stop", "description": "Stop"}]) is True
    assert (await bot.call("getMyCommands"))[0]["command"] == "stop"
    assert (await bot.call("setMyCommands", commands=[{"command": "No Way"}]))[0] == 400
    number = await bot.simulator.say(7, "well done")
    reaction = [{"type": "emoji", "emoji": "👍"}]
    assert await bot.call("setMessageReaction", chat_id=7, message_id=number, reaction=reaction) is True
    assert (await bot.call("sendChatAction", chat_id=7, action="dancing"))[0] == 400


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("sendMessageDraft", {"chat_id": 7, "draft_id": 0, "text": "x"}, "non-zero"),
        ("sendMessageDraft", {"chat_id": FORUM, "draft_id": 1, "text": "x"}, "PEER_INVALID"),
        ("sendMessageDraft", {"chat_id": 7, "draft_id": 1, "text": "x" * 4097}, "too long"),
        ("setMessageReaction", {"chat_id": 7, "message_id": 99, "reaction": []}, "not found"),
        ("sendVoice", {"chat_id": 7}, "there is no voice"),
    ],
)
async def test_what_the_newer_methods_refuse(
    bot: BotClient, method: str, arguments: dict[str, Any], words: str
) -> None:
    """Drafts are for private chats, reactions for messages that are there, uploads have files."""
    await bot.control("group", chat=FORUM, forum=True)
    status, description, _ = await bot.call(method, **arguments)
    assert (status, words in description) == (400, True)


async def test_a_reaction_is_one_of_those_telegram_has(bot: BotClient) -> None:
    """One standard emoji, and of those only what the chat allows."""
    number = await bot.simulator.say(7, "well done")

    async def react(*emoji: str) -> Any:
        reactions = [{"type": "emoji", "emoji": one} for one in emoji]
        return await bot.call("setMessageReaction", chat_id=7, message_id=number, reaction=reactions)

    assert "REACTION_INVALID" in (await react("\N{SNAIL}"))[1]
    assert "TOO_MANY" in (await react("👍", "👎"))[1]
    assert await react("👍") is True
    await bot.control("restrict", chat=7, reactions=["🔥"])
    assert "REACTION_INVALID" in (await react("👍"))[1]
    assert await react() is True


async def test_an_album_comes_as_updates_of_its_own(bot: BotClient) -> None:
    """Each part has the album's number; the words are at the first."""
    await bot.control("send_album", chat=7, contents=["b25l", "dHdv"], caption="two")
    messages = [update["message"] for update in await bot.call("getUpdates")]
    assert [message.get("caption") for message in messages] == ["two", None]
    assert {message["media_group_id"] for message in messages} == {"1313"}


async def test_reactions_come_when_asked_for_by_name(bot: BotClient) -> None:
    """By default Telegram sends no reactions."""
    number = await bot.simulator.say(7, "hello")
    await bot.control("react", chat=7, message=number, emoji="👍")
    assert len(await bot.call("getUpdates", allowed_updates=["message", "message_reaction"])) == 1
    await bot.control("react", chat=7, message=number, emoji=None)
    changed = (await bot.call("getUpdates"))[-1]["message_reaction"]
    assert [len(changed[name]) for name in ("old_reaction", "new_reaction")] == [1, 0]


async def test_rates_hold_for_groups_and_overall(bot: BotClient) -> None:
    """Twenty a minute in a group, thirty a second in all; an edit counts as well."""
    await bot.control("group", chat=-5)
    await bot.control("limit", group_per_minute=2)
    sent = await bot.call("sendMessage", chat_id=-5, text="1")
    await bot.call("editMessageText", chat_id=-5, message_id=sent["message_id"], text="2")
    assert 50 <= (await bot.call("sendMessage", chat_id=-5, text="3"))[2]["retry_after"] <= 60
    assert (await bot.call("sendMessage", chat_id=7, text="1"))["text"] == "1"
    await bot.control("limit", overall_per_second=1)
    assert [
        isinstance(await bot.call("sendMessage", chat_id=chat, text="x"), tuple) for chat in (7, -5)
    ].count(True) >= 1
