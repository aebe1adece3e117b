"""Commands about a conversation's model and memory, over HTTP, with a model behind the gateway."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from gateway.agents.model.compaction import REQUESTED_NOTICE
from gateway.conversations.commands.branching import SUMMARISED
from gateway.conversations.commands.room_verbosity import NOT_IN_A_CHAT
from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn, last_text


def answer(body: dict[str, Any]) -> ScriptedTurn:
    """Answer with the model's name and the number of messages, or write a summary."""
    if "conversation begins" in last_text(body):
        return ScriptedTurn(text="they said hello")
    return ScriptedTurn(text=f"{body['model']} heard {last_text(body)}")


@dataclass(frozen=True, kw_only=True)
class Talk:
    """One conversation over HTTP."""

    process: GatewayProcess
    session: aiohttp.ClientSession
    server: OpenAIServer

    async def post(self, text: str) -> dict[str, Any]:
        """Send a message or a command and return the response."""
        async with self.session.post("/conversations/talk/messages", json={"text": text}) as answer:
            response: dict[str, Any] = await answer.json()
        return response

    async def command(self, text: str) -> str:
        """Give a command and return its reply."""
        return str((await self.post(text))["reply"])

    async def ask(self, text: str, **more: Any) -> str:
        """Send a message and return what the model answers."""
        given = {"conversation": "talk", "input": text, **more}
        async with self.session.post("/agents/default/turns", json=given) as answer:
            queued = await answer.json()
        async with asyncio.timeout(60):
            while True:
                async with self.session.get(queued["statusUrl"]) as answer:
                    status = await answer.json()
                if status["state"] not in {"queued", "running"}:
                    assert status["state"] == "completed", status
                    return str(status["output"])
                await asyncio.sleep(0.05)

    async def wait_for_text(self, text: str) -> None:
        """Wait for a message of the conversation."""
        async with asyncio.timeout(60):
            while not [one for one in await self.events() if one["data"].get("text") == text]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def events(self) -> list[dict[str, Any]]:
        """Return the conversation's events."""
        return await self.process.events("talk")


@asynccontextmanager
async def open_talk(data: Path) -> AsyncIterator[Talk]:
    """Run a gateway with a model whose operator allows another one."""
    async with OpenAIServer(answer) as server:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:first",
            "DOVECOTE_AGENT__MODEL_CHOICES": "openai:second",
            "DOVECOTE_AGENT__BASE_URL": server.base_url,
            "DOVECOTE_TRANSCRIPTION__COMMAND": "grep,-ao,good morning",
        }
        async with gateway(data, env=env) as process, process.http() as session:
            yield Talk(process=process, session=session, server=server)


async def test_model_undo_and_compact_over_http(tmp_path: Path) -> None:
    """A selected model answers, what is taken back is not sent again, and a summary replaces the rest."""
    async with open_talk(tmp_path / "data") as talk:
        assert await talk.ask("one") == "first heard one"
        assert "- `openai:second`" in await talk.command("/model")
        assert "is not allowed here" in await talk.command("/model openai:third")
        await talk.command("/model second")
        assert await talk.ask("two") == "second heard two"
        assert "`two`" in await talk.command("/undo")
        assert await talk.ask("three") == "second heard three"
        assert _prompts(talk.server.bodies[-1]) == ["one", "three"]
        assert (await talk.post("/compact"))["reply"] is None
        await talk.wait_for_text(REQUESTED_NOTICE)
        assert await talk.ask("four") == "second heard four"
        prompts = _prompts(talk.server.bodies[-1])
        assert "they said hello" in prompts[0]
        assert prompts[1:] == ["three", "four"]
        assert "`four`" in await talk.command("/undo")
        assert await talk.command("/undo") == SUMMARISED
        assert await talk.command("/verbose on") == NOT_IN_A_CHAT
        undone = [one["data"]["text"] for one in await talk.events() if one["type"] == "turn.undone"]
        assert undone == ["two", "four"]


async def test_a_voice_message_reaches_the_model_as_text(tmp_path: Path) -> None:
    """The model gets the words and the file; without words the person and the model get the reason."""
    async with open_talk(tmp_path / "data") as talk:
        said = await talk.ask("listen", attachments=[_voice("good morning")])
        assert '[what the voice message inbox/voice.ogg says: "good morning"]' in said
        assert "[attached: inbox/voice.ogg, " in said
        said = await talk.ask("and now", attachments=[_voice("mumble")])
        assert "could not be transcribed: the command failed with exit code 1]" in said
        notices = [one["data"]["text"] for one in await talk.events() if one["data"].get("role") == "notice"]
        assert len([text for text in notices if "I could not understand the voice message" in text]) == 1


async def test_a_voice_message_needs_no_workspace(tmp_path: Path) -> None:
    """The words are what the agent needs; if there are none, nothing is left of the message."""
    async with open_talk(tmp_path / "data") as talk:
        change: dict[str, Any] = {"config": {"workspaces": []}}
        async with talk.session.patch("/accounts/me/agents/default", json=change) as answer:
            assert answer.status == 200, await answer.text()
        said = await talk.ask("listen", attachments=[_voice("good morning")])
        assert '[what the voice message voice.ogg says: "good morning"]' in said
        assert "audio/ogg; there is no workspace for it]" in said
        await talk.ask("and now", attachments=[_voice("mumble")])
        notices = [one["data"]["text"] for one in await talk.events() if one["data"].get("role") == "notice"]
        assert [text for text in notices if text.endswith("exit code 1. I continue without it.")] == notices


def _voice(words: str) -> dict[str, str]:
    """Return a sound with these words as an attachment."""
    content = base64.b64encode(b"OggS" + bytes(9) + words.encode()).decode()
    return {"name": "voice.ogg", "type": "audio/ogg", "content": content}


def _prompts(body: dict[str, Any]) -> list[str]:
    """Return what people said in a request to the model."""
    return [str(one["content"]) for one in body["messages"] if one["role"] == "user"]
