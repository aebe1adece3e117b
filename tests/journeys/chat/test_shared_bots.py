"""Two channels are configured with the same bot, of which only one receives."""

from __future__ import annotations

from pathlib import Path

from channels.pancake.simulator import simulate
from gateway_process import gateway
from turn_requests import poll_until


async def test_the_second_channel_of_a_page_says_why_it_does_not_receive(tmp_path: Path) -> None:
    """It names the other channel as the reason, and receives once that one is deleted."""
    async with (
        simulate() as platform,
        gateway(tmp_path / "data", env={"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}) as process,
        process.http() as session,
    ):
        for name in ("first", "second"):
            channel = {"name": name, "kind": "pancake", "settings": platform.settings(mode="webhook")}
            async with session.post("/accounts/me/channels", json=channel) as answer:
                assert answer.status == 201, await answer.text()
            if name == "first":
                status = "/accounts/me/channels/first/status"
                await poll_until(process, status, lambda found: found["state"] == "receiving")
        status = "/accounts/me/channels/second/status"
        found = await poll_until(process, status, lambda found: found["state"] == "trouble")
        assert "the same bot or page" in found["reason"]
        async with session.delete("/accounts/me/channels/first") as answer:
            assert answer.status == 204, await answer.text()
        await poll_until(process, status, lambda found: found["state"] == "receiving")
