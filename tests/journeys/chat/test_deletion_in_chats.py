"""What a chat belongs to is deleted while it has work: the chat gets the end of each turn and job."""

from __future__ import annotations

from pathlib import Path

from gateway_process import GatewayProcess
from telegram_gateway import CHAT, send_and_wait, telegram_gateway, wait_for_message
from turn_requests import poll_until

OTHER_CHAT = CHAT + 1
ENDLESS = "while :; do sleep 0.1; done"
STOPPED = "Stopped: the conversation was deleted."


async def delete_conversation(process: GatewayProcess) -> None:
    """Delete the only conversation."""
    async with process.http() as session:
        async with session.get("/conversations") as answer:
            (conversation,) = (await answer.json())["items"]
        async with session.delete(f"/conversations/{conversation['id']}") as answer:
            assert answer.status == 204, await answer.text()


async def test_turns_of_a_deleted_conversation_end_in_its_chat(tmp_path: Path) -> None:
    """The running and the queued turn are both reported; the next message begins another conversation."""
    async with telegram_gateway(tmp_path / "data") as (platform, process):
        await platform.say(CHAT, f"!{ENDLESS}")
        await platform.say(CHAT, "!echo queued")
        states = ["queued", "running"]
        await poll_until(process, "/turns", lambda got: [turn["state"] for turn in got["items"]] == states)
        await delete_conversation(process)
        assert [post.text for post in platform.messages(CHAT)] == [STOPPED, STOPPED]
        assert "fresh" in await send_and_wait(platform, "!echo fresh", containing="fresh")


async def test_a_job_of_a_deleted_conversation_is_reported_to_its_chat(tmp_path: Path) -> None:
    """The chat that was promised the result gets the job's end, and nothing of it afterwards."""
    async with telegram_gateway(tmp_path / "data") as (platform, process):
        started = await send_and_wait(platform, f"!&echo pigeon; {ENDLESS}", containing="Started job")
        job = next(word for word in started.split() if word.startswith("job_")).strip(";.")
        await poll_until(process, f"/jobs/{job}/logs", lambda got: "pigeon" in got["output"])
        await delete_conversation(process)
        report = await wait_for_message(platform, job, after=1)
        assert "stopped" in report
        assert "pigeon" in report
        await send_and_wait(platform, "!echo fresh", containing="fresh")
        assert sum(job in post.text for post in platform.messages(CHAT)) == 2


async def delete_account(process: GatewayProcess) -> None:
    """Delete the account of the gateway's key."""
    async with process.http() as session, session.delete("/accounts/me") as answer:
        assert answer.status == 204, await answer.text()


async def test_work_of_a_deleted_account_ends_in_its_chats(tmp_path: Path) -> None:
    """A chat with a job, and another with a running and a queued turn, both read that these have ended."""
    async with telegram_gateway(tmp_path / "data") as (platform, process):
        started = await send_and_wait(platform, f"!&echo pigeon; {ENDLESS}", containing="Started job")
        job = next(word for word in started.split() if word.startswith("job_")).strip(";.")
        await poll_until(process, f"/jobs/{job}/logs", lambda got: "pigeon" in got["output"])
        await platform.say(OTHER_CHAT, f"!{ENDLESS}")
        await platform.say(OTHER_CHAT, "!echo queued")
        states = ["queued", "running"]
        await poll_until(
            process, "/turns", lambda got: [turn["state"] for turn in got["items"]][: len(states)] == states
        )
        await delete_account(process)
        assert [post.text for post in platform.messages(OTHER_CHAT)] == 2 * [
            "Stopped: the account was deleted."
        ]
        reports = [post.text for post in platform.messages(CHAT)[1:]]
        assert any(job in report and "stopped" in report for report in reports), reports
