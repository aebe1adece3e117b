"""Messages that arrive while the agent works: edited, collected, steered, or interrupting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.simulator import Simulator
from gateway_process import GatewayProcess
from openai_server import OpenAIServer, Script, ScriptedTurn, echo, last_text
from telegram_gateway import CHAT, send_and_wait, telegram_gateway, wait_for_message

WAIT = "!touch started; while [ ! -e go ]; do sleep 0.05; done; echo went"


@pytest.fixture
async def chat_gateway(tmp_path: Path) -> AsyncIterator[tuple[Simulator, GatewayProcess]]:
    """Run a gateway at a simulated Telegram whose bot shows by reactions what it does."""
    reactions = {"DOVECOTE_CHANNELS__TELEGRAM__REACTIONS": "true"}
    async with telegram_gateway(tmp_path / "data", **reactions) as running:
        yield running


@asynccontextmanager
async def model_chat(
    data: Path, script: Script
) -> AsyncIterator[tuple[Simulator, GatewayProcess, OpenAIServer]]:
    """Run a gateway at a simulated Telegram whose agent asks a scripted model."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(OpenAIServer(script))
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": server.base_url}
        platform, process = await stack.enter_async_context(telegram_gateway(data, **env))
        yield platform, process, server


async def wait_until_accepted(process: GatewayProcess, text: str) -> None:
    """Wait until the gateway has accepted a message."""
    async with asyncio.timeout(20), process.http() as session:
        said: list[str] = []
        while text not in said:
            async with session.get("/conversations") as answer:
                items = (await answer.json())["items"]
            for item in items:
                async with session.get(f"/conversations/{item['id']}/snapshot") as answer:
                    said += [one["text"] for one in (await answer.json())["messages"]]
            await asyncio.sleep(0.05)


async def patched(process: GatewayProcess, path: str, change: dict[str, Any]) -> dict[str, Any]:
    """Change something over HTTP and return it."""
    async with process.http() as session, session.patch(path, json=change) as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


async def position_of(process: GatewayProcess, text: str) -> int:
    """Return the place in line of the turn that answers a message."""
    async with process.http() as session:
        async with session.get("/conversations") as answer:
            (conversation,) = (await answer.json())["items"]
        async with session.get(f"/conversations/{conversation['id']}/snapshot") as answer:
            said = (await answer.json())["messages"]
        (turn,) = (one["turn"] for one in said if one["text"] == text)
        async with session.get(f"/status/{turn}") as answer:
            return int((await answer.json())["position"])


async def until_cancelled(process: GatewayProcess, count: int) -> None:
    """Wait until so many turns of the one conversation are cancelled."""
    async with process.http() as session, session.get("/conversations") as answer:
        (conversation,) = (await answer.json())["items"]
    async with asyncio.timeout(20):
        while True:
            events = await process.events(conversation["id"])
            if sum(event["type"] == "turn.cancelled" for event in events) == count:
                return


async def test_what_is_corrected_while_it_waits_is_answered_once_and_shown(
    chat_gateway: tuple[Simulator, GatewayProcess],
) -> None:
    """The edit replaces the waiting text; eyes and a thumb show the state, and the API names the writer."""
    platform, process = chat_gateway
    await platform.say(CHAT, WAIT)
    second = await platform.say(CHAT, "!echo teh pigeon")
    await send_and_wait(platform, "/status", containing="1 more waits in line")
    await platform.edit(CHAT, second, "!echo the pigeon")
    await send_and_wait(platform, "/queue", containing="Queue mode")
    await send_and_wait(platform, "/stop", containing="Stopping 2 turns")
    await send_and_wait(platform, "!echo after", containing="after")
    third = await platform.say(CHAT, "!echo teh dove")
    await wait_for_message(platform, "teh dove")
    await platform.edit(CHAT, third, "!echo the dove")
    await wait_for_message(platform, "the dove")
    assert not [post for post in platform.messages(CHAT) if "pigeon" in post.text]

    def signs() -> list[int]:
        calls = [params for method, params in platform.calls if method == "setMessageReaction"]
        return [int(params["message_id"]) for params in calls]

    await platform.wait_until(lambda: signs().count(third) >= 2, seconds=20)
    async with process.http() as session:
        async with session.get("/conversations?preview=true") as answer:
            (talk,) = (await answer.json())["items"]
        async with session.get(f"/conversations/{talk['id']}/snapshot") as answer:
            said = [one for one in (await answer.json())["messages"] if one["role"] == "user"]
    (person,) = {(one["author"], one["author_name"]) for one in said}
    assert (talk["preview"]["people"], talk["preview"]["people_names"]) == ([person[0]], [person[1]])
    assert person[1] == f"Person {person[0]}" == talk["address"]["room_name"]


async def test_a_message_interrupts_the_model_at_once(tmp_path: Path) -> None:
    """The model's server sees the disconnect, the partial text stays, and the new message is answered."""

    def script(body: dict[str, Any]) -> ScriptedTurn:
        stalls = "story" in last_text(body)
        return ScriptedTurn(text="Once upon a time", fault="stall") if stalls else echo(body)

    async with model_chat(tmp_path / "data", script) as (platform, _process, server):
        await send_and_wait(platform, "/queue interrupt", containing="cancels the running turn")
        await platform.say(CHAT, "tell me a story")
        await platform.wait_until(
            lambda: any("Once" in draft.text for draft in platform.drafts(CHAT)), seconds=20
        )
        await send_and_wait(platform, "rather this", containing="echo: rather this")
        assert server.disconnects == 1
        texts = [post.text for post in platform.messages(CHAT)]
    assert any("Once upon a time" in text for text in texts)
    assert "Stopped." not in texts


async def test_a_stop_cuts_the_model_off_and_is_said_once(tmp_path: Path) -> None:
    """`/stop` ends the model call and what waits behind it, with one word about it."""
    script = [ScriptedTurn(text="a long story", fault="stall"), ScriptedTurn(text="the next story")]
    async with model_chat(tmp_path / "data", script) as (platform, process, server):
        await platform.say(CHAT, "tell me")
        async with asyncio.timeout(20):
            await server.streaming.wait()
        for number in range(3):
            await platform.say(CHAT, f"and {number}")
        await wait_until_accepted(process, "and 2")
        await platform.say(CHAT, "/stop")
        async with asyncio.timeout(20):
            await server.left.wait()
        await wait_for_message(platform, "Stopping 4 turns")
        await until_cancelled(process, 4)
        await wait_for_message(platform, "Stopped.")
        await send_and_wait(platform, "/status", containing="Nothing is running")
        await send_and_wait(platform, "another", containing="the next story")  # results come in order
        stopped = [post for post in platform.messages(CHAT) if post.text == "Stopped."]
    assert len(stopped) == 1


async def test_messages_are_collected_into_one_question(tmp_path: Path) -> None:
    """In the agent's mode, messages that arrive during an approval are asked together afterwards."""
    async with model_chat(tmp_path / "data", echo) as (platform, process, server):
        await patched(process, "/accounts/me/agents/default", {"config": {"queue": "collect"}})
        await send_and_wait(platform, "/queue", containing="Queue mode collect")
        question = await send_and_wait(platform, "run: echo pigeon", containing="May I run this?")
        await platform.say(CHAT, "one")
        await platform.say(CHAT, "two")
        await wait_until_accepted(process, "two")
        assert await position_of(process, "one") == 1
        approval = next(word for word in question.split() if word.startswith("apr_"))
        await send_and_wait(platform, f"/approve {approval}", containing="result:")
        await wait_for_message(platform, "echo: one")
        assert last_text(server.bodies[-1]) == "one\n\ntwo"
        assert server.requests == 3


async def test_the_running_turn_receives_messages_at_its_next_step(tmp_path: Path) -> None:
    """In mode steer the next model request has the words; no further turn answers them."""
    async with model_chat(tmp_path / "data", echo) as (platform, process, server):
        await send_and_wait(platform, "/queue steer", containing="next step")
        question = await send_and_wait(platform, "run: echo pigeon", containing="May I run this?")
        await platform.say(CHAT, "and a dove")
        await wait_until_accepted(process, "and a dove")
        approval = next(word for word in question.split() if word.startswith("apr_"))
        await send_and_wait(platform, f"/approve {approval}", containing="echo: and a dove")
        await send_and_wait(platform, "/status", containing="Nothing is running")
        roles = [message["role"] for message in server.bodies[-1]["messages"]]
        assert roles[-2:] == ["tool", "user"]
        assert server.requests == 2


async def test_a_conversations_queue_is_set_over_http(chat_gateway: tuple[Simulator, GatewayProcess]) -> None:
    """A mode alone or with a limit, null for the agent's; anything else is refused."""
    platform, process = chat_gateway
    await send_and_wait(platform, "!echo hi", containing="hi")
    async with process.http() as session, session.get("/conversations") as answer:
        (conversation,) = (await answer.json())["items"]
    path = f"/conversations/{conversation['id']}"
    assert conversation["queue"] == {"mode": None, "limit": None}
    assert (await patched(process, path, {"queue": "steer"}))["queue"] == {"mode": "steer", "limit": None}
    limited = {"mode": "collect", "limit": 7}
    assert (await patched(process, path, {"queue": limited}))["queue"] == limited
    assert (await patched(process, path, {"queue": None}))["queue"] == {"mode": None, "limit": None}
    for wrong in ("sideways", {"limit": 0}, {"mode": "steer", "more": 1}):
        async with process.http() as session, session.patch(path, json={"queue": wrong}) as answer:
            assert answer.status in {400, 422}
