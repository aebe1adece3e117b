"""A model's careful command is asked about in a chat, and decided there or elsewhere."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot_messages import wait_until_settled
from channels.telegram.simulator import Simulator
from channels.telegram.simulator.world import Post
from gateway_process import GatewayProcess
from openai_server import OpenAIServer, echo
from telegram_gateway import CHAT, send_and_wait, telegram_gateway, wait_for_message

ChatGateway = tuple[Simulator, GatewayProcess]


@pytest.fixture
async def chat_gateway(tmp_path: Path) -> AsyncIterator[ChatGateway]:
    """Run a gateway at a simulated Telegram whose agent asks a loopback model."""
    async with OpenAIServer(echo) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        async with telegram_gateway(tmp_path / "data", **env) as (platform, process):
            yield platform, process


async def wait_for_approval_message(
    platform: Simulator, process: GatewayProcess, command: str
) -> tuple[Post, str]:
    """Have the model ask for a command; returns the question's message and the approval's id."""
    text = await send_and_wait(platform, f"run: {command}", containing="May I run this?")
    (post,) = [post for post in platform.messages(CHAT) if post.text == text]
    await wait_until_settled(process)
    found = re.search(r"apr_\w+", text)
    assert found is not None, text
    return post, found.group()


async def test_a_press_decides_and_is_answered(chat_gateway: ChatGateway) -> None:
    """The pressed command runs, the press is answered, the question shows who decided and has no buttons."""
    platform, process = chat_gateway
    post, approval = await wait_for_approval_message(platform, process, "echo pigeon")
    assert [button["text"] for button in post.buttons] == ["Approve", "Deny"]
    press = await platform.press(CHAT, post.id, f"approve:{approval}")
    await platform.wait_until(lambda: platform.answers(press) is not None)
    assert (platform.answers(press) or {})["text"] == "Approved."
    await platform.wait_until(lambda: "Approved by" in post.text, seconds=20)
    assert "echo pigeon" in post.text
    assert post.buttons == []
    await wait_for_message(platform, "pigeon", after=1)


async def test_a_late_press_shows_who_was_first(chat_gateway: ChatGateway) -> None:
    """A decision over HTTP shows in the chat; a later, different press is answered and changes nothing."""
    platform, process = chat_gateway
    await platform.fail(502, times=1000, method="editMessageText")
    post, approval = await wait_for_approval_message(platform, process, "echo pigeon")
    async with process.http() as session:
        body = {"decision": "deny", "comment": "not on a Friday"}
        async with session.post(f"/approvals/{approval}", json=body) as answer:
            assert answer.status == 200, await answer.text()
    press = await platform.press(CHAT, post.id, f"approve:{approval}")
    await platform.wait_until(lambda: platform.answers(press) is not None)
    assert (platform.answers(press) or {})["text"].startswith("Too late: already denied by")
    await platform.well()
    await platform.wait_until(lambda: "Denied by" in post.text, seconds=20)
    assert "not on a Friday" in post.text


@pytest.mark.parametrize(("word", "decision"), [("approve", "Approved by"), ("deny", "Denied by")])
async def test_a_typed_decision_counts_like_a_press(
    chat_gateway: ChatGateway, word: str, decision: str
) -> None:
    """`/approve ID` and `/deny ID` decide; the question shows it, and a second decision gets the first."""
    platform, process = chat_gateway
    post, approval = await wait_for_approval_message(platform, process, "echo pigeon")
    await send_and_wait(platform, f"/{word} {approval}", containing=f"{decision.split(maxsplit=1)[0]}: ")
    await platform.wait_until(lambda: decision in post.text, seconds=20)
    other = "deny" if word == "approve" else "approve"
    await send_and_wait(platform, f"/{other} {approval}", containing="Too late: already")


async def test_a_question_waits_through_kill_9_for_a_button(chat_gateway: ChatGateway) -> None:
    """Killed while it waits, the turn still waits after the start; the old message's button decides it."""
    platform, process = chat_gateway
    post, approval = await wait_for_approval_message(platform, process, "echo pigeon >> ran; cat ran")
    await process.kill()
    await process.start()
    await platform.press(CHAT, post.id, f"approve:{approval}")
    await platform.wait_until(lambda: "Approved by" in post.text, seconds=20)
    said = await wait_for_message(platform, "result:")
    assert said.count("pigeon") == 1


async def test_a_question_of_a_stopped_turn_loses_its_buttons_also_after_kill_9(
    chat_gateway: ChatGateway,
) -> None:
    """Killed before Telegram has changed the message, the gateway changes it after the start, once."""
    platform, process = chat_gateway
    await platform.fail(502, times=1000, method="editMessageText")
    post, _approval = await wait_for_approval_message(platform, process, "echo pigeon")
    await send_and_wait(platform, "/stop", containing="Stopped.")
    await process.kill()
    await platform.well()
    await process.start()
    await platform.wait_until(lambda: "the turn was stopped" in post.text, seconds=20)
    assert "echo pigeon" in post.text
    assert post.buttons == []


async def test_a_thumb_under_the_question_decides_it(chat_gateway: ChatGateway) -> None:
    """A reaction counts like a button; applause does not."""
    platform, process = chat_gateway
    post, _approval = await wait_for_approval_message(platform, process, "echo pigeon")
    await platform.react(CHAT, post.id, "🎉")
    await platform.react(CHAT, post.id, "👎")
    await platform.wait_until(lambda: "Denied by" in post.text, seconds=20)


async def test_a_changed_sandbox_is_asked_about_again(chat_gateway: ChatGateway) -> None:
    """Approved for a sandbox that was changed since: nothing runs until the new question is decided."""
    platform, process = chat_gateway
    _post, approval = await wait_for_approval_message(platform, process, "echo pigeon")
    async with process.http() as session:
        change = {"config": {"timeout": 77}}
        async with session.patch("/accounts/me/sandboxes/default", json=change) as answer:
            assert answer.status == 200, await answer.text()
    await send_and_wait(platform, f"/approve {approval}", containing="Approved")
    again = await wait_for_message(platform, "the sandbox was changed")
    found = re.search(r"apr_\w+", again)
    assert found is not None
    assert found.group() != approval
    assert not [post for post in platform.messages(CHAT) if "result:" in post.text]
    await send_and_wait(platform, f"/approve {found.group()}", containing="Approved")
    assert "pigeon" in await wait_for_message(platform, "result:")


async def test_who_may_not_approve_does_not_by_typing(tmp_path: Path) -> None:
    """With named approvers a typed command is asked about, and runs once one of them has pressed."""
    named = {"DOVECOTE_CHANNELS__TELEGRAM__APPROVERS": '["999"]'}
    async with telegram_gateway(tmp_path / "data", **named) as (platform, _process):
        text = await send_and_wait(platform, "!echo pigeon", containing="May I run this?")
        (post,) = [post for post in platform.messages(CHAT) if post.text == text]
        (approve, _deny) = (button["callback_data"] for button in post.buttons)
        own = await platform.press(CHAT, post.id, approve)
        await platform.wait_until(lambda: platform.answers(own) is not None)
        assert (platform.answers(own) or {})["text"] == "You may not decide this."
        await platform.press(CHAT, post.id, approve, user=999)
        await platform.wait_until(lambda: "Approved by" in post.text, seconds=20)
        await platform.wait_until(lambda: platform.messages(CHAT)[-1].text.strip() == "pigeon", seconds=20)
