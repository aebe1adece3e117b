"""One account that asks for far more than the gateway has places for does not keep another waiting.

The pools are small, so that a few turns and webhooks fill them: of eight places, one account gets seven.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from api_server import ADMIN_KEY, ApiClient
from gateway_process import GatewayProcess, gateway
from webhook_receiver import never_respond, webhook_receiver

PLACES = 8
QUOTA = 600
ENDS = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoAccounts:
    """A gateway, a busy account with its agent, and a quiet one with its own."""

    process: GatewayProcess
    busy: ApiClient
    quiet: ApiClient
    agents: dict[str, str]

    async def post_turn(self, client: ApiClient, text: str) -> str:
        """Queue a turn in a conversation of its own; returns its id."""
        made = await client.call("POST", f"/agents/{self.agents[client.key]}/turns", {"input": text})
        assert made.status == 202, made.body
        return str(made.body["turnId"])

    async def count_states(self, turns: list[str]) -> Counter[str]:
        """Count the busy account's turns by their states."""
        listed = (await self.busy.call("GET", "/turns?limit=100")).body["items"]
        return Counter(str(turn["state"]) for turn in listed if turn["id"] in turns)

    async def wait_for_end(self, client: ApiClient, turn: str) -> dict[str, Any]:
        """Wait until a turn has ended, and return it."""
        async with asyncio.timeout(60):
            while (status := (await client.call("GET", f"/status/{turn}")).body)["state"] not in ENDS:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.2)
        return dict(status)


async def _add_agent(client: ApiClient) -> str:
    config = {"model": "builtin:shell"}
    made = await client.call("POST", "/accounts/me/agents", {"name": "shell", "config": config})
    return str(made.body["id"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def accounts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TwoAccounts]:
    """Run a gateway with small pools and two accounts."""
    env = {
        "DOVECOTE_ADMIN_KEY": ADMIN_KEY,
        "DOVECOTE_ALLOW_SHARED_HOST": "true",
        "DOVECOTE_DELIVERY_WORKERS": str(PLACES),
        "DOVECOTE_DRAIN_TIMEOUT": "0",
        "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
        "DOVECOTE_REQUESTS_PER_MINUTE": str(QUOTA),
        "DOVECOTE_TURN_WORKERS": str(PLACES),
    }
    data = tmp_path_factory.mktemp("fair") / "data"
    async with gateway(data, env=env) as process, aiohttp.ClientSession() as session:
        operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
        made = await operator.call("POST", "/accounts", {"name": "quiet"})
        busy = ApiClient(session=session, url=process.url, key=process.key)
        quiet = ApiClient(session=session, url=process.url, key=made.body["key"])
        agents = {client.key: await _add_agent(client) for client in (busy, quiet)}
        yield TwoAccounts(process=process, busy=busy, quiet=quiet, agents=agents)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_turn_starts_while_another_account_has_more_turns_than_places(accounts: TwoAccounts) -> None:
    """The other account's turn ends while all of the first one's places are held and its queue is full."""
    busy, quiet = accounts.busy, accounts.quiet
    turns = [await accounts.post_turn(busy, "!sleep 300") for _ in range(3 * PLACES)]
    try:
        status = await accounts.wait_for_end(quiet, await accounts.post_turn(quiet, "!echo pig''eon"))
        assert status["state"] == "completed", status
        assert "pigeon" in str(status)
        states = await accounts.count_states(turns)
        assert not set(states) - {"running", "queued"}, states
        assert states["running"] <= PLACES - 1
        assert states["queued"] >= 2 * PLACES
    finally:
        for turn in turns:
            await busy.call("POST", f"/turns/{turn}/cancel")


async def test_a_single_account_uses_all_places_but_the_last(accounts: TwoAccounts) -> None:
    """No other account waits: seven of eight places are used, and every turn ends."""
    turns = [await accounts.post_turn(accounts.busy, "!sleep 300") for _ in range(PLACES + 2)]
    async with asyncio.timeout(60):
        while (await accounts.count_states(turns))["running"] < PLACES - 1:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.2)
    for turn in turns:
        await accounts.busy.call("POST", f"/turns/{turn}/cancel")
    ends = [await accounts.wait_for_end(accounts.busy, turn) for turn in turns]
    assert {end["state"] for end in ends} == {"cancelled"}


async def test_a_webhook_arrives_while_another_account_calls_receivers_that_never_answer(
    accounts: TwoAccounts,
) -> None:
    """The other account's webhook is delivered before a call of the first one has timed out."""
    async with webhook_receiver() as stuck, webhook_receiver() as answering:
        stuck.script = deque([never_respond] * 1000)
        for number in range(3 * PLACES):
            body = {"url": f"{stuck.url}/{number}", "name": f"stuck-{number}"}
            made = await accounts.busy.call("POST", "/accounts/me/webhooks", body)
            sent = await accounts.busy.call("POST", f"/webhooks/{made.body['id']}/test")
            assert sent.status == 202, sent.body
        made = await accounts.quiet.call(
            "POST", "/accounts/me/webhooks", {"url": answering.url, "name": "answering"}
        )
        await accounts.quiet.call("POST", f"/webhooks/{made.body['id']}/test")
        async with asyncio.timeout(60):
            await answering.request_received.wait()
        assert 0 < len(stuck.requests) <= PLACES - 1


async def test_a_socket_that_floods_is_refused_and_another_account_is_served(accounts: TwoAccounts) -> None:
    """Frames above the key's rate are errors, then the connection is closed; the other's turn runs."""
    scopes = {"name": "flood", "scopes": ["read", "chat"]}
    key = (await accounts.busy.call("POST", "/accounts/me/keys", scopes)).body["key"]
    headers = {"Authorization": f"Bearer {key}"}
    refused: list[Any] = []
    async with accounts.busy.session.ws_connect(f"{accounts.process.url}/ws", headers=headers) as socket:

        async def flood() -> None:
            with suppress(ConnectionError):
                for number in range(2 * QUOTA):
                    text = "" if number % 10 else "!true"  # most are refused, and counted as well
                    await socket.send_json(
                        {"type": "send", "id": str(number), "conversation": "flood", "text": text}
                    )

        flooding = asyncio.create_task(flood())
        served = await accounts.wait_for_end(
            accounts.quiet, await accounts.post_turn(accounts.quiet, "!true")
        )
        async with asyncio.timeout(60):
            async for message in socket:
                frame = message.json()
                if frame.get("code") == "too_many" and "retry_after" in frame:
                    refused.append(frame)
        await flooding
        assert socket.close_code == 4429
    assert served["state"] == "completed"
    assert refused
