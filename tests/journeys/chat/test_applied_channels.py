"""A channel of the settings file is opened and closed by `dovecote apply` while the gateway runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from channels.telegram.simulator import simulate
from command_line import run_command_line
from gateway.config.load import environment_without_ours
from gateway.ingress.channel_supervisor import RECONCILE_SECONDS
from gateway_process import GatewayProcess, gateway
from nats_servers import nats_server
from turn_requests import poll_until


async def apply(process: GatewayProcess, text: str, env: Mapping[str, str]) -> None:
    """Make a text the settings file, and apply it."""
    file = process.data / "dovecote.toml"
    file.write_text(text)
    whole = environment_without_ours() | {"DOVECOTE_DATA_DIR": str(process.data), **env}
    done = await asyncio.to_thread(run_command_line, "apply", "--config", str(file), env=whole)
    assert "1 changed" in done.output, done.output


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "named"])
async def test_an_applied_channel_receives_long_before_the_interval(
    tmp_path: Path, *, embedded: bool
) -> None:
    """It is opened at once, by a gateway with its own nats-server and by one with that of an operator."""
    async with simulate() as platform, nats_server(tmp_path / "nats") as server:
        url = f"nats://{server.token}@127.0.0.1:{server.port}"
        env = {"DOVECOTE_EVENT_LOG_BYTES": "100000000"} | ({} if embedded else {"DOVECOTE_NATS_URL": url})
        async with gateway(tmp_path / "data", env=env) as process:
            file = f'[channels.telegram]\ntoken = "{platform.token}"\nbase_url = "{platform.url}"\n'
            await apply(process, file, env)
            async with asyncio.timeout(RECONCILE_SECONDS / 2):
                path = "/accounts/me/channels/telegram/status"
                await poll_until(process, path, lambda found: found["state"] == "receiving")


async def test_a_channel_is_created_paused(tmp_path: Path) -> None:
    """It receives nothing until the file or a request says so; what people write then waits for it."""
    env = {"DOVECOTE_EGRESS_ALLOW": '["127.0.0.0/8"]'}
    async with simulate() as platform, gateway(tmp_path / "data", env=env) as process:
        file = f'[channels.telegram]\ntoken = "{platform.token}"\nbase_url = "{platform.url}"\n'
        await platform.say(7, "!echo dove")
        await apply(process, f'{file}allow = ["*"]\npaused = true\n', {})
        path = "/accounts/me/channels/telegram/status"
        await poll_until(process, path, lambda found: found["state"] == "paused")
        async with process.http() as http:
            app = {"mode": "http", "bot_token": "xoxb-1", "signing_secret": "a-signing-secret"}
            given = {
                "name": "two",
                "kind": "slack",
                "paused": True,
                "settings": {**app, "base_url": platform.url},
            }
            async with http.post("/accounts/me/channels", json=given) as answer:
                assert (answer.status, (await answer.json()).get("paused")) == (201, True), (
                    await answer.text()
                )
        assert platform.messages(7) == []
        await apply(process, f'{file}allow = ["*"]\n', {"DOVECOTE_CHANNELS__TELEGRAM__PAUSED": "false"})
        (reply,) = await platform.wait_for_messages(1, chat=7, seconds=30)
    assert "dove" in reply.text
