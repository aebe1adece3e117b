"""Commands typed into a chat while something runs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.telegram.simulator import Simulator
from silent_service import e2b_at, silent_service
from telegram_gateway import CHAT, send_and_wait, telegram_gateway, wait_for_message

WAIT_FOR_FILE = "touch started; while [ ! -e go ]; do sleep 0.05; done"
UNTIL_STARTED = "!while [ ! -e started ]; do sleep 0.05; done; echo has started"


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Simulator]:
    """Run a gateway at a simulated Telegram."""
    async with telegram_gateway(tmp_path / "data") as (simulator, _process):
        yield simulator


async def start_job(platform: Simulator, script: str) -> str:
    """Start a background job that waits for a signal, and return its id once it runs."""
    started = await send_and_wait(platform, f"!&{script}", containing="Started job")
    await send_and_wait(platform, UNTIL_STARTED, containing="has started")
    found = re.search(r"job_\w+", started)
    assert found is not None, started
    return found.group()


async def test_a_running_jobs_output_is_shown_so_far(platform: Simulator) -> None:
    """`/jobs logs` shows what a job has written while it runs, and how it ended afterwards."""
    job = await start_job(platform, f"echo first; {WAIT_FOR_FILE}; echo last")
    so_far = await send_and_wait(platform, f"/jobs logs {job}", containing=f"Job {job} is running")
    assert "first" in so_far
    assert "last" not in so_far
    await send_and_wait(platform, "!touch go; echo went", containing="went")
    await wait_for_message(platform, "last")
    ended = await send_and_wait(platform, f"/jobs logs {job}", containing=f"Job {job} is completed")
    assert "exit code 0" in ended
    assert "last" in ended


async def test_a_job_is_stopped_from_the_chat(platform: Simulator) -> None:
    """`/jobs stop` ends a job, and the chat gets its end."""
    job = await start_job(platform, WAIT_FOR_FILE)
    await send_and_wait(platform, f"/jobs stop {job}", containing="Stopping job")
    await wait_for_message(platform, "stopped")


async def test_a_late_result_of_an_old_conversation_reaches_the_chat(platform: Simulator) -> None:
    """After `/new` another conversation begins, and the old one's job still reports to the same chat."""
    await start_job(platform, f"{WAIT_FOR_FILE}; echo pigeon")
    old = await send_and_wait(platform, "/status", containing="1 background job is running")
    await send_and_wait(platform, "/new", containing="new conversation")
    await send_and_wait(platform, "!touch go; echo went", containing="went")
    await wait_for_message(platform, "pigeon")
    new = await send_and_wait(platform, "/status", containing="Nothing is running.")
    assert re.findall(r"cnv_\w+", old) != re.findall(r"cnv_\w+", new)


async def test_stop_ends_a_running_command(platform: Simulator) -> None:
    """`/status` shows the running and waiting turns; `/stop` ends all of them at once."""
    await platform.say(CHAT, "!sleep 300")
    await platform.say(CHAT, "!echo never")
    said = await send_and_wait(platform, "/status", containing="1 more waits in line")
    assert "!sleep 300. 1 more waits" in said
    await send_and_wait(platform, "/stop", containing="Stopping 2 turns")
    await wait_for_message(platform, "Stopped.")
    await send_and_wait(platform, "!echo again", containing="again")
    assert not [post for post in platform.messages(CHAT) if "never" in post.text]


async def test_a_room_sees_the_tools_that_run(platform: Simulator) -> None:
    """After `/verbose on` a status line shows the command that runs, and disappears with its end."""
    await send_and_wait(platform, "/verbose on", containing="Tools are shown here")
    await platform.say(CHAT, "!sleep 300")
    shown = await wait_for_message(platform, "sleep 300")
    assert shown.startswith("… ")
    await send_and_wait(platform, "/stop", containing="Stopping 1 turn")
    await platform.wait_until(
        lambda: not [post for post in platform.messages(CHAT) if "sleep 300" in post.text], seconds=60
    )


async def test_a_room_sees_that_a_sandbox_takes_long_to_start(tmp_path: Path) -> None:
    """After `/verbose on` the status line shows what the command waits for."""
    async with silent_service() as (url, _called, over):
        env = e2b_at(url) | {"DOVECOTE_SANDBOX__PROVIDER": "e2b"}
        async with telegram_gateway(tmp_path / "data", **env) as (platform, _process):
            await send_and_wait(platform, "/verbose on", containing="Tools are shown here")
            await platform.say(CHAT, "!echo far")
            await wait_for_message(platform, "… starting the sandbox")
            await send_and_wait(platform, "/stop", containing="Stopping 1 turn")
            over.set()
