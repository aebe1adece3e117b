"""Items that OpenAI's client adds to a conversation after a turn are messages of its history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from openai_gateway import OpenAIGateway, openai_gateway
from openai_server import echo, spoken

FIRST = [("user", "hello"), ("assistant", "echo: hello")]
ADDED: list[Any] = [
    {"role": "user", "content": "the weather?"},
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"place": "Oslo"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    {"role": "assistant", "content": "It is sunny."},
]
SHOWN = [
    ("user", "the weather?"),
    ("assistant", ['{"place": "Oslo"}']),
    ("tool", "sunny"),
    ("assistant", "It is sunny."),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def items_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenAIGateway]:
    """Run a gateway whose model repeats what it is asked."""
    async with openai_gateway(tmp_path_factory.mktemp("openai") / "data", echo) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def ask(running: OpenAIGateway, conversation: str, text: str) -> list[tuple[str, Any]]:
    """Ask in a conversation, and return the messages that the model got."""
    await running.client.responses.create(model="default", input=text, conversation=conversation)
    return spoken(running.model.bodies[-1])


def own_id(conversation: str) -> str:
    """Return the id of a conversation as the gateway's own API writes it."""
    return f"cnv_{conversation.removeprefix('conv_')}"


async def post(running: OpenAIGateway, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the gateway's own API."""
    async with running.process.http() as http, http.post(path, json=body) as answer:
        assert answer.ok, await answer.text()
        answered: dict[str, Any] = await answer.json()
        return answered


async def test_the_model_gets_them_in_their_roles_from_then_on(items_gateway: OpenAIGateway) -> None:
    """The next turn has them between the turn before and its own message, and later turns too."""
    conversations = items_gateway.client.conversations
    made = await conversations.create()
    assert await ask(items_gateway, made.id, "hello") == FIRST[:1]
    await conversations.items.create(made.id, items=ADDED[:2])
    await conversations.items.create(made.id, items=ADDED[2:])
    asked = [*FIRST, *SHOWN, ("user", "and?")]
    assert await ask(items_gateway, made.id, "and?") == asked
    later = [*asked, ("assistant", "echo: and?"), ("user", "well?")]
    assert await ask(items_gateway, made.id, "well?") == later
    listed = [item.type async for item in conversations.items.list(made.id, order="asc")]
    assert listed[2:6] == ["message", "function_call", "function_call_output", "message"]


async def test_an_answer_that_is_added_alone_follows_a_message(items_gateway: OpenAIGateway) -> None:
    """Vendors require that a person speaks between two answers."""
    conversations = items_gateway.client.conversations
    made = await conversations.create()
    await ask(items_gateway, made.id, "hello")
    await conversations.items.create(made.id, items=ADDED[3:])
    added = [("user", "(continue)"), ("assistant", "It is sunny."), ("user", "so?")]
    assert await ask(items_gateway, made.id, "so?") == [*FIRST, *added]


async def test_they_are_deleted_until_a_turn_has_them(items_gateway: OpenAIGateway) -> None:
    """The agent gets nothing of a deleted item; what it has had stays."""
    items = items_gateway.client.conversations.items
    made = await items_gateway.client.conversations.create()
    await ask(items_gateway, made.id, "hello")
    added: Any = await items.create(made.id, items=[ADDED[0], {"role": "user", "content": "a secret"}])
    await items.delete(added.data[1].id, conversation_id=made.id)
    asked = await ask(items_gateway, made.id, "go on")
    assert asked == [*FIRST, SHOWN[0], ("user", "go on")]
    with pytest.raises(openai.ConflictError, match="the agent has had this item"):
        await items.delete(added.data[0].id, conversation_id=made.id)


async def test_those_of_a_running_turn_follow_it(items_gateway: OpenAIGateway) -> None:
    """The turn goes on without them, and its end comes first in the history."""
    client = items_gateway.client
    made = await client.conversations.create()
    await ask(items_gateway, made.id, "hello")
    asking = asyncio.create_task(ask(items_gateway, made.id, "run: echo done"))
    async with asyncio.timeout(60), items_gateway.process.http() as http:
        query = {"state": "pending", "conversation": made.id}
        while not (found := (await (await http.get("/approvals", params=query)).json())["items"]):  # noqa: ASYNC110 - the gateway is another process
            await asyncio.sleep(0.05)
    await client.conversations.items.create(made.id, items=ADDED[:1])
    await post(items_gateway, f"/approvals/{found[0]['id']}", {"decision": "approve"})
    assert SHOWN[0] not in await asking
    assert (await ask(items_gateway, made.id, "next"))[-2:] == [SHOWN[0], ("user", "next")]


async def test_a_turn_that_is_run_again_has_them_once(items_gateway: OpenAIGateway) -> None:
    """So has the next one; the last exchange that is taken back takes them with it."""
    client = items_gateway.client
    made = await client.conversations.create()
    await ask(items_gateway, made.id, "hello")
    await client.conversations.items.create(made.id, items=ADDED[:1])
    turn = await client.responses.create(model="default", input="first try", conversation=made.id)
    await post(items_gateway, f"/turns/{turn.id}/rerun", {"text": "second try"})
    again = [*FIRST, SHOWN[0], ("user", "second try")]
    assert await ask(items_gateway, made.id, "next") == [
        *again, ("assistant", "echo: second try"), ("user", "next"),
    ]  # fmt: skip
    for _ in range(2):
        await post(items_gateway, f"/conversations/{made.id}/messages", {"text": "/undo"})
    assert await ask(items_gateway, made.id, "last") == [*FIRST, ("user", "last")]


async def test_its_id_names_the_conversation_in_the_whole_api(items_gateway: OpenAIGateway) -> None:
    """In bodies and filters too, in both spellings; an unknown id creates no conversation of that name."""
    made = await items_gateway.client.conversations.create()
    body = {"input": "hello", "conversation": made.id}
    turn = await post(items_gateway, "/agents/default/turns", body)
    assert turn["conversationId"] == own_id(made.id)
    async with items_gateway.process.http() as http:
        async with http.get("/turns", params={"conversation": made.id}) as listed:
            assert [one["id"] for one in (await listed.json())["items"]] == [turn["turnId"]]
        unknown = {**body, "conversation": f"conv_{'0' * 26}"}
        async with http.post("/agents/default/turns", json=unknown) as refused:
            assert refused.status in {404, 422}, await refused.text()
        async with http.ws_connect("/ws") as socket:
            await socket.send_json({"type": "subscribe", "conversation": made.id, "after": 0})
            assert (await socket.receive_json())["conversation"] == own_id(made.id)
