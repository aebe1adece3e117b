"""M15: the secrets of every platform go through a day of its failures at DEBUG level and show nowhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from api_server import ApiClient
from channel_rigs import open_rig
from channels.port import ChannelPlugin
from channels.registry import built_in
from channels.testing.rig import ChannelRig, WebhookRig
from gateway_process import GatewayProcess, channel_env, gateway
from secret_scan import files_containing, read_everything

ALL = pytest.mark.parametrize("plugin", list(built_in().values()), ids=lambda plugin: plugin.name)
SHORTEST = 8
"""Letters of a secret that is looked for: anything shorter is found everywhere."""


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(40):
        while not await condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.05)


async def _ask_and_wait(rig: ChannelRig, word: str) -> None:
    """Send a message as a user, and wait for the bot's answer."""

    async def is_said() -> bool:
        return any(word in received.text for received in rig.visible_messages())

    await rig.say(f"!echo {word}")
    await _until(is_said)


async def _use_webhook_channel(rig: WebhookRig, mine: ApiClient) -> None:
    """Make a second channel that is posted to, and post to it: signed, unsigned, wrongly and in pieces."""
    settings = {**rig.webhook_settings(), "allow": ["*"]}
    kind = next(one["kind"] for one in (await mine.call("GET", "/accounts/me/channels")).body["items"])
    made = await mine.call(
        "POST", "/accounts/me/channels", {"name": "posted", "kind": kind, "settings": settings}
    )
    assert made.status == 201, made.body
    async with aiohttp.ClientSession() as session:
        for body in (rig.update("posted"), b"garbage", b"[" * 5000):
            for request in (
                rig.webhook_request(body),
                rig.webhook_request(body, secret=None),
                rig.webhook_request(body, secret="wrong"),
            ):
                where = f"{mine.url}/channels/{made.body['id']}/inbound"
                async with session.post(where, data=request.body, headers=request.headers) as answer:
                    assert answer.status in {200, 400, 401, 503}


async def _exercise(rig: WebhookRig, process: GatewayProcess) -> list[str]:
    """Live through the day; return all that was answered over HTTP."""
    async with aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)

        async def has_failed() -> bool:
            listed = (await mine.call("GET", "/accounts/me/channels")).body["items"]
            states = [await mine.call("GET", f"/accounts/me/channels/{one['id']}/status") for one in listed]
            return any(one.body["state"] in {"trouble", "stalled"} for one in states)

        await _ask_and_wait(rig, "pigeon")
        await rig.throttle(1)
        await _ask_and_wait(rig, "magpie")
        await rig.fail()
        await rig.cut_sending(carried_out=True)
        await _ask_and_wait(rig, "starling")
        await rig.cut_receiving()
        await _ask_and_wait(rig, "sparrow")
        await _use_webhook_channel(rig, mine)
        await rig.revoke()
        await rig.cut_receiving()
        await rig.say("!echo nobody hears this")
        await _until(has_failed)
        return await read_everything(mine)


@ALL
async def test_m15_a_platform_s_secrets_show_nowhere(plugin: ChannelPlugin, tmp_path: Path) -> None:
    """Throttled, failed, cut off, posted to and revoked: no secret in logs, answers, events or files."""
    async with open_rig(plugin) as rig:
        env = channel_env(plugin.name, rig.settings(allow=["*"], groups="always")) | {
            "DOVECOTE_LOG_LEVEL": "debug",
            "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
        }
        async with gateway(tmp_path / "data", env=env) as process:
            answered = "\n".join(await _exercise(rig, process))
            logged = "\n".join(process.log)
        secrets = [secret for secret in rig.secrets if len(secret) >= SHORTEST]
    assert secrets
    assert len(process.log) > 50, "the gateway was to be talkative"
    assert "starling" in answered, "what is looked through was to hold what happened"
    for secret in secrets:
        assert secret not in logged
        assert secret not in answered
        assert json.dumps(secret)[1:-1] not in answered
        assert files_containing(tmp_path / "data", secret) == []
