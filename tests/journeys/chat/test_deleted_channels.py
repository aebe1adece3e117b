"""A channel is deleted while answers are owed to its chats."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

from channels.telegram.simulator import simulate
from gateway_process import gateway
from telegram_gateway import CHAT, send_and_wait
from turn_requests import poll_until

SECRET = "whsec_" + "A" * 43 + "="


def is_retried(found: dict[str, Any]) -> bool:
    """Return whether a delivery has failed and is tried again."""
    return any(one["state"] == "retrying" for one in found["items"])


def has_two_jobs_done(found: dict[str, Any]) -> bool:
    """Return whether no turn is open after the job's follow-up turn."""
    states = [one["state"] for one in found["items"]]
    return len(states) == 3 and set(states) == {"completed"}


def is_under_way(found: dict[str, Any]) -> bool:
    """Return whether a delivery is being sent."""
    return any(one["state"] == "sending" for one in found["items"])


def is_suppressed(found: dict[str, Any]) -> bool:
    """Return whether no delivery is open."""
    return {one["state"] for one in found["items"]} == {"suppressed"}


async def test_a_send_that_fails_after_the_deletion_is_ended_too(tmp_path: Path) -> None:
    """Telegram refuses it for now when the channel is gone; the next attempt finds that, and is the last."""
    async with (
        simulate() as platform,
        gateway(tmp_path / "data", env={"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}) as process,
        process.http() as http,
    ):
        settings = platform.settings(allow=["*"])
        channel = {"name": "loft", "kind": "telegram", "agent": "default", "settings": settings}
        async with http.post("/accounts/me/channels", json=channel) as answer:
            assert answer.status == 201, await answer.text()
        await platform.fail(502, method="sendMessage", seconds=1.0)
        await platform.say(CHAT, "!echo under way")
        await poll_until(process, "/deliveries", is_under_way)
        async with http.delete("/accounts/me/channels/loft") as answer:
            assert answer.status == 204, await answer.text()
        found = await poll_until(process, "/deliveries", is_suppressed)
    assert [one["error"] for one in found["items"]] == ["the channel was deleted"]


async def test_what_a_deleted_channel_owes_is_ended_with_the_reason(tmp_path: Path) -> None:
    """What waits says that the channel was deleted, also schedules; a job's result is in the conversation."""
    async with (
        simulate() as platform,
        gateway(tmp_path / "data", env={"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}) as process,
        process.http() as http,
    ):
        channel = {"name": "loft", "kind": "telegram", "agent": "default"}
        settings = platform.settings(allow=["*"])
        async with http.post("/accounts/me/channels", json={**channel, "settings": settings}) as answer:
            assert answer.status == 201, await answer.text()
        await send_and_wait(platform, "!&while [ ! -e go ]; do sleep 0.1; done; echo pigeon")
        async with http.get("/conversations") as answer:
            (chat,) = (await answer.json())["items"]
        for number, conversation in enumerate((chat["id"], chat["id"], "elsewhere")):
            kind = "reminder" if number else "turn"
            new = {"conversation": conversation, "text": "!true", "every": "PT1H", "kind": kind}
            async with http.post("/accounts/me/schedules", json=new) as answer:
                assert answer.status == 201, await answer.text()
        new = {"conversation": chat["id"], "template": "!true", "secret": SECRET}
        async with http.post("/accounts/me/triggers", json=new) as answer:
            trigger = await answer.json()
        await platform.fail(502, times=1000, method="sendMessage")
        await platform.say(CHAT, "!echo waits")
        await poll_until(process, "/deliveries", is_retried)
        async with http.delete("/accounts/me/channels/loft") as answer:
            assert answer.status == 204, await answer.text()
        signed = {"X-Hub-Signature-256": f"sha256={hmac.digest(SECRET.encode(), b'{}', 'sha256').hex()}"}
        signed["X-GitHub-Delivery"] = "one"
        async with http.post(trigger["path"], data=b"{}", headers=signed) as answer:
            refused = (answer.status, (await answer.json())["detail"])
        async with http.put("/accounts/me/workspaces/default/files/go", data=b"x") as answer:
            assert answer.status < 300, await answer.text()
        await poll_until(process, "/turns", has_two_jobs_done)
        async with http.get("/deliveries") as answer:
            found = [(one["state"], one["error"]) for one in (await answer.json())["items"]]
        async with http.get("/accounts/me/schedules") as answer:
            schedules = [(one["state"], one["note"]) for one in (await answer.json())["items"]]
    ended = ("ended", "the channel of its conversation was deleted")
    assert refused == (409, "the channel of the trigger's conversation was deleted: delete the trigger")
    assert schedules == [ended, ended, ("active", "")]
    assert sorted(found) == [("delivered", None), ("suppressed", "the channel was deleted")]
