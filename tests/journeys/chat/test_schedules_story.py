"""Schedules from outside: made in a chat and over HTTP, fired once through a kill, and changed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gateway_process import GatewayProcess
from telegram_gateway import CHAT, send_and_wait, telegram_gateway, wait_for_message

PATH = "/accounts/me/schedules"


async def call(process: GatewayProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Call the gateway and return the status and the body."""
    async with process.http() as session, session.request(method, path, json=body) as answer:
        return answer.status, await answer.json() if answer.status != 204 else None


async def change_one_version(process: GatewayProcess, path: str, texts: list[str]) -> list[int]:
    """Send changes of the present version at the same time; returns their statuses."""
    async with process.http() as session:
        async with session.get(path) as read:
            version = {"If-Match": read.headers["ETag"]}

        async def change(text: str) -> int:
            async with session.patch(path, json={"text": text}, headers=version) as answer:
                return answer.status

        return await asyncio.gather(*map(change, texts))


async def test_a_schedule_fires_once_through_a_kill(tmp_path: Path) -> None:
    """What is due while the gateway is dead comes afterwards, once, to the chat that it was made in."""
    async with telegram_gateway(tmp_path / "data", DOVECOTE_TIMEZONE="Europe/Berlin") as (platform, process):
        await send_and_wait(platform, "/remind in 20m drink tea", containing="I remind you")
        await send_and_wait(platform, "/schedule whenever you like", containing="did not understand")
        for when in ("in 999999w", "0001-01-01 0:00", "every 1s", "cron 0 0 30 2 *"):
            await send_and_wait(platform, f"/remind {when} grow old", containing="did not understand")
        listed = await send_and_wait(platform, "/schedule", containing="drink tea")
        assert listed.count("sch_") == 1
        conversation = (await call(process, "GET", "/conversations"))[1]["items"][0]["id"]
        due = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
        status, made = await call(
            process, "POST", PATH, {"conversation": conversation, "text": "!echo scheduled work", "at": due}
        )
        assert (status, made["state"], made["timezone"]) == (201, "active", "Europe/Berlin")
        await process.kill()
        await asyncio.sleep(max((datetime.fromisoformat(due) - datetime.now(UTC)).total_seconds(), 0))
        await process.start()
        await wait_for_message(platform, "scheduled work")
        status, after = await call(process, "GET", f"{PATH}/{made['id']}")
        assert (after["state"], after["fired"], after["next_at"]) == ("ended", 1, None)
        events = await process.events(conversation)
        (fired,) = [one for one in events if one["type"] == "schedule.fired"]
        assert fired["turn"] == after["last_turn"]
        reminder = (await call(process, "GET", PATH))[1]["items"][0]
        status, run = await call(process, "POST", f"{PATH}/{reminder['id']}/run")
        assert (status, run["turnId"]) == (202, None)
        await wait_for_message(platform, "Reminder: drink tea")
        await send_and_wait(platform, "!echo behind", containing="behind")
        assert len([one for one in platform.messages(CHAT) if "scheduled work" in one.text]) == 1

        heartbeats = [
            (await call(process, "POST", PATH, {"conversation": conversation, "every": "P1D", **body}))[1]
            for body in (
                {"text": "!echo HEARTBEAT_OK", "heartbeat": True},
                {"text": "!echo the disk is full", "heartbeat": True},
            )
        ]
        for one in heartbeats:
            status, run = await call(process, "POST", f"{PATH}/{one['id']}/run")
            assert (status, bool(run["turnId"])) == (202, True)
        await wait_for_message(platform, "the disk is full")
        assert not [one for one in platform.messages(CHAT) if "HEARTBEAT_OK" in one.text]
        wrong = {"conversation": conversation, "every": "P1D", "text": "x", "kind": "reminder"}
        status, problem = await call(process, "POST", PATH, wrong | {"heartbeat": True})
        assert (status, problem["errors"][0]["pointer"]) == (422, "/heartbeat")

        assert (await call(process, "PATCH", f"{PATH}/{reminder['id']}", {"paused": True}))[1][
            "state"
        ] == "paused"
        status, problem = await call(process, "PATCH", f"{PATH}/{made['id']}", {"paused": False})
        assert (status, "new one" in problem["detail"]) == (409, True)
        status, again = await call(process, "PATCH", f"{PATH}/{made['id']}", {"every": "P1D"})
        assert (status, again["state"], again["every"]) == (200, "active", "P1D")
        changed = await change_one_version(process, f"{PATH}/{made['id']}", ["a", "b", "c"])
        assert sorted(changed) == [200, 412, 412]
        for body, pointer in (
            ({"every": "PT1S"}, "/every"),
            ({"cron": "0 0 30 2 *"}, "/cron"),
            ({"cron": "0 9 * * *", "timezone": "Nowhere"}, "/timezone"),
            ({"at": "2030-01-01T00:00:00"}, "/at"),
            ({"at": "9999-12-31T23:59:59-12:00"}, "/at"),
            ({}, "/at"),
            ({"every": "P1D", "agent": "nobody", "conversation": "new"}, "/agent"),
        ):
            status, problem = await call(
                process, "POST", PATH, {"conversation": conversation, "text": "x", **body}
            )
            assert (status, problem["errors"][0]["pointer"]) == (422, pointer)
        assert (await call(process, "DELETE", f"{PATH}/{made['id']}"))[0] == 204
        assert (await call(process, "GET", f"{PATH}/{made['id']}"))[0] == 404
        await deleted_before_its_time(process)
        await send_and_wait(platform, "!echo the end", containing="the end")
        assert not [one for one in platform.messages(CHAT) if "forget me" in one.text]


async def deleted_before_its_time(process: GatewayProcess) -> None:
    """Delete a conversation whose reminder is due at once: the schedule goes with it, and nothing fails."""
    due = datetime.now(UTC) + timedelta(seconds=2)
    body = {"conversation": "short", "kind": "reminder", "text": "forget me", "at": due.isoformat()}
    status, made = await call(process, "POST", PATH, body)
    assert status == 201
    assert (await call(process, "DELETE", f"/conversations/{made['conversation']}"))[0] in {202, 204}
    async with asyncio.timeout(60):
        while (await call(process, "GET", f"{PATH}/{made['id']}"))[0] != 404:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await asyncio.sleep(max((due - datetime.now(UTC)).total_seconds(), 0))
    status, problem = await call(process, "POST", f"{PATH}/{made['id']}/run")
    assert (status, problem["status"]) == (404, 404)
    body["conversation"], body["at"] = made["conversation"], (due + timedelta(days=1)).isoformat()
    status, problem = await call(process, "POST", PATH, body)
    assert (status, problem["errors"][0]["pointer"]) == (422, "/conversation"), problem
    assert not [line for line in process.log if "schedules.failed" in line]
