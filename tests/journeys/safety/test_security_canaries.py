"""M15, M16: a secret of every kind goes through a day of failures at DEBUG level and shows nowhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from api_server import ADMIN_KEY, ApiClient
from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env, gateway
from openai_server import OpenAIServer, ScriptedTurn
from secret_scan import files_containing, read_everything
from webhook_receiver import WebhookReceiver, respond, webhook_receiver

CANARIES = {
    "bot token": "canaryTelegramBotTokenQ7x",
    "model key": "sk-canaryModelKeyQ7x",
    "secret keys": "canarySecretKeysOfTheOperatorQ7x",
    "admin key": ADMIN_KEY,
    "variable": "canaryVariableOfASandboxQ7x",
    "webhook secret": "Y2FuYXJ5V2ViaG9va1NlY3JldFE3eA",
    "channel of a record": "canaryTokenOfASecondBotQ7x",
    "guessed key": "dvk_canaryGuessedKeyQ7x" + "a" * 24,
    "key in a query": "canaryKeyInAQueryQ7x",
}
ENDS = ("completed", "failed", "cancelled")


@asynccontextmanager
async def open_failing_gateway(
    data: Path,
) -> AsyncIterator[tuple[GatewayProcess, Simulator, WebhookReceiver]]:
    """Run a gateway at its most verbose, with a platform, a model and a receiver that fail."""
    script = [
        ScriptedTurn(fault="401"),
        ScriptedTurn(fault="500"),
        ScriptedTurn(fault="garbage"),
        *[ScriptedTurn(fault="500")] * 40,
    ]
    async with (
        simulate(token=f"700700700:{CANARIES['bot token']}") as platform,
        webhook_receiver(*[respond(500)] * 2, respond(410)) as receiver,
        OpenAIServer(script) as model,
    ):
        env = channel_env("telegram", platform.settings()) | {
            "DOVECOTE_LOG_LEVEL": "debug",
            "DOVECOTE_ADMIN_KEY": CANARIES["admin key"],
            "DOVECOTE_SECRET_KEYS": CANARIES["secret keys"],
            "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
            "DOVECOTE_WEBHOOK_SCHEDULE": "0.1,0.1",
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
            "OPENAI_API_KEY": CANARIES["model key"],
        }
        async with gateway(data, env=env) as process:
            yield process, platform, receiver


async def _exercise(process: GatewayProcess, platform: Simulator, receiver: WebhookReceiver) -> list[str]:
    """Run every story once; return all HTTP answers, and every key that was shown once."""
    async with aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        agent, keys = await _make(mine, receiver)
        said = {"input": "!echo said; false", "conversation": "canaries", "webhook": {"url": receiver.url}}
        await platform.fail(401, method="sendMessage", chat=7, times=1)
        await platform.fail(500, method="sendMessage", chat=8, times=3)
        for chat in (7, 8):
            await platform.say(chat, "hello")
        for text in ("!echo said; false", "!& sleep 60", "!exit 3"):
            await _ended(mine, f"/agents/{agent}/turns", {**said, "input": text})
        await _started(mine, "/agents/default/turns", {"input": "hello", "conversation": "model"})
        async with asyncio.timeout(30):
            while len(receiver.requests) < 3:
                receiver.request_received.clear()
                await receiver.request_received.wait()
        await _send_bad_credentials(mine)
        return [*await read_everything(mine), *keys]


async def _make(mine: ApiClient, receiver: WebhookReceiver) -> tuple[str, list[str]]:
    """Create records with secrets in them; return an agent without a model, and the secrets shown once."""
    variables = {"envVars": {"CANARY": CANARIES["variable"]}}
    sandbox = await mine.call("POST", "/accounts/me/sandboxes", {"name": "secretive", "config": variables})
    assert sandbox.status == 201, sandbox.body
    shell = {"model": "builtin:shell", "sandbox": sandbox.body["id"]}
    agent = await mine.call("POST", "/accounts/me/agents", {"name": "shell", "config": shell})
    assert agent.status == 201, agent.body
    hook = {"url": receiver.url, "secret": f"whsec_{CANARIES['webhook secret']}=="}
    made = await mine.call("POST", "/accounts/me/webhooks", hook)
    assert made.status == 201, made.body
    settings = {"token": f"1:{CANARIES['channel of a record']}", "base_url": "http://127.0.0.1:9/"}
    bot = {"name": "second", "kind": "telegram", "settings": settings}
    assert (await mine.call("POST", "/accounts/me/channels", bot)).status == 201
    key = await mine.call("POST", "/accounts/me/keys", {"name": "told once"})
    return str(agent.body["id"]), [key.body["key"]]


async def _started(mine: ApiClient, path: str, body: dict[str, Any]) -> str:
    answer = await mine.call("POST", path, body)
    assert answer.status == 202, answer.body
    return str(answer.body["turnId"])


async def _ended(mine: ApiClient, path: str, body: dict[str, Any]) -> None:
    turn = await _started(mine, path, body)
    async with asyncio.timeout(30):
        while (await mine.call("GET", f"/status/{turn}")).body["state"] not in ENDS:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)


async def _send_bad_credentials(mine: ApiClient) -> None:
    """Ask with wrong keys, in wrong places and in shapes that are refused with what was sent in hand."""
    for path in ("/accounts/me", f"/accounts/me?key={CANARIES['key in a query']}", "/nowhere"):
        await mine.call("GET", path, None, Authorization=f"Bearer {CANARIES['guessed key']}")
    await mine.call("POST", "/accounts", {"name": "x"}, Authorization=f"Bearer {CANARIES['guessed key']}")
    bot = {"name": "bad", "kind": "telegram", "settings": {"token": CANARIES["channel of a record"] + " !"}}
    assert (await mine.call("POST", "/accounts/me/channels", bot)).status == 422
    sandbox = {"name": "bad", "config": {"envVars": {"LD_PRELOAD": CANARIES["variable"]}}}
    assert (await mine.call("POST", "/accounts/me/sandboxes", sandbox)).status == 422


async def test_m15_no_secret_shows_in_logs_events_answers_metrics_or_files(tmp_path: Path) -> None:
    """After refused tokens, broken models, dead webhooks and guessed keys each canary is found nowhere."""
    data = tmp_path / "data"
    async with open_failing_gateway(data) as (process, platform, receiver):
        *reported, made_key = await _exercise(process, platform, receiver)
        bearer, log = process.key, process.log
    answered, logged = "\n".join(reported), "\n".join(log)
    assert "sendMessage" in logged or "telegram" in logged
    assert len(log) > 50, "the gateway was to be talkative"
    canaries = {**CANARIES, "made key": made_key}
    for name, canary in canaries.items():
        assert canary not in logged, name
        assert canary not in answered, name
        assert json.dumps(canary)[1:-1] not in answered, name
        assert files_containing(data, canary) == [], name
    assert bearer not in logged + answered
    own = [file.name for file in data.iterdir() if file.is_file() and bearer.encode() in file.read_bytes()]
    assert own == ["key"]
    for request in receiver.requests:
        whole = request.body.decode() + json.dumps(request.headers)
        assert not [name for name, canary in canaries.items() if canary in whole]
