"""Webhooks through a real gateway: signed, repeated on schedule and through kill -9, replayed, closed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gateway_process import GatewayProcess, gateway
from webhook_receiver import ReceivedRequest, WebhookReceiver, respond, webhook_receiver

PATIENCE = 30.0


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway that may call loopback and repeats webhooks quickly."""
    env = {
        "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
        "DOVECOTE_WEBHOOK_SCHEDULE": "0.3,0.3,0.3",
        "DOVECOTE_AGENT__MODEL": "builtin:shell",
    }
    async with gateway(tmp_path / "data", env=env, options=["--allow-unsandboxed-host"]) as process:
        yield process


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    """Listen for webhooks."""
    async with webhook_receiver() as listening:
        yield listening


async def ask(running: GatewayProcess, method: str, path: str, body: object = None) -> Any:
    """Make a request that must succeed, and return its answer."""
    async with running.http() as session, session.request(method, path, json=body) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json() if answer.status != 204 else None


async def wait_for_requests(receiver: WebhookReceiver, count: int) -> list[ReceivedRequest]:
    """Wait until the receiver got so many requests."""
    async with asyncio.timeout(PATIENCE):
        while len(receiver.requests) < count:
            receiver.request_received.clear()
            await receiver.request_received.wait()
    return receiver.requests


async def wait_for_state(running: GatewayProcess, state: str) -> dict[str, Any]:
    """Wait until a delivery is in a state, and return it with its attempts."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await ask(running, "GET", f"/deliveries?state={state}")
            if found["items"]:
                detail: dict[str, Any] = await ask(running, "GET", f"/deliveries/{found['items'][0]['id']}")
                return detail
            await asyncio.sleep(0.1)


async def start_turn(running: GatewayProcess, text: str, **more: object) -> dict[str, Any]:
    """Ask the default agent for something."""
    agents = await ask(running, "GET", "/accounts/me/agents")
    agent = agents["items"][0]["id"]
    taken: dict[str, Any] = await ask(running, "POST", f"/agents/{agent}/turns", {"input": text, **more})
    return taken


async def test_a_result_reaches_its_endpoint_signed_and_once(
    running: GatewayProcess, receiver: WebhookReceiver
) -> None:
    """An endpoint that fails twice gets the event a third time with one id, and verifies every attempt."""
    receiver.script.extend([respond(500), respond(503)])
    made = await ask(
        running, "POST", "/accounts/me/webhooks", {"url": receiver.url, "events": ["agent.finished"]}
    )
    turn = await start_turn(running, "!echo hello", webhook={"id": made["id"]})
    requests = await wait_for_requests(receiver, 3)
    for request in requests:
        reported = Webhook(made["secret"]).verify(request.body, request.headers)
        assert reported["type"] == request.headers["ce-type"] == "agent.finished"
        assert reported["data"]["turnId"] == turn["turnId"]
        assert reported["id"] == request.headers["webhook-id"] == request.headers["ce-id"]
    assert len({request.headers["webhook-id"] for request in requests}) == 1
    detail = await wait_for_state(running, "delivered")
    assert [attempt["status"] for attempt in detail["attempts"]] == [500, 503, 200]
    assert detail["id"] == requests[0].headers["dovecote-delivery"]


async def test_a_delivery_survives_the_gateway(running: GatewayProcess, receiver: WebhookReceiver) -> None:
    """Killed while a webhook waits for its next attempt, the gateway makes it after the restart."""
    receiver.script.append(respond(429, Retry_After="3"))
    await start_turn(running, "!echo hello", webhook={"url": receiver.url})
    await wait_for_requests(receiver, 1)
    await wait_for_state(running, "retrying")
    await running.kill()
    await running.start()
    requests = await wait_for_requests(receiver, 2)
    assert requests[0].headers["webhook-id"] == requests[1].headers["webhook-id"]
    assert (await wait_for_state(running, "delivered"))["state"] == "delivered"
    assert len(receiver.requests) == 2


async def test_a_closed_endpoint_is_opened_and_called_again(
    running: GatewayProcess, receiver: WebhookReceiver
) -> None:
    """A 410 disables an endpoint; opened again, it is sent what it missed, under the same id."""
    receiver.script.append(respond(410))
    made = await ask(running, "POST", "/accounts/me/webhooks", {"url": receiver.url})
    path = f"/accounts/me/webhooks/{made['id']}"
    await start_turn(running, "!echo hello")
    await wait_for_state(running, "suppressed")
    assert not (await ask(running, "GET", path))["enabled"]
    await ask(running, "PATCH", path, {"enabled": True})
    missed = receiver.requests[0].headers["webhook-id"]
    assert (await ask(running, "POST", f"/webhooks/{made['id']}/replay", {"ids": [missed]}))["replayed"] == 1
    requests = await wait_for_requests(receiver, 2)
    assert requests[1].headers["webhook-id"] == missed
    assert json.loads(requests[1].body)["id"] == missed


@pytest.mark.parametrize("resumes", ["test", "enable", "url", "retry", "replay"])
async def test_an_endpoint_whose_owner_acts_is_called_before_its_pause_ends(
    running: GatewayProcess, receiver: WebhookReceiver, resumes: str
) -> None:
    """A pause of an hour holds an event; a test, a change, a retry or a replay of the owner ends it."""
    receiver.script.append(respond(503, Retry_After="3600"))
    made = await ask(running, "POST", "/accounts/me/webhooks", {"url": receiver.url})
    path = f"/accounts/me/webhooks/{made['id']}"
    await ask(running, "POST", f"/webhooks/{made['id']}/test")
    await wait_for_requests(receiver, 1)
    paused = await wait_for_state(running, "retrying")
    turn = await start_turn(running, "!echo hello")
    held = await wait_for_state(running, "pending")
    assert held["turn"] == turn["turnId"]
    await {
        "test": lambda: ask(running, "POST", f"/webhooks/{made['id']}/test"),
        "enable": lambda: ask(running, "PATCH", path, {"enabled": True}),
        "url": lambda: ask(running, "PATCH", path, {"url": f"{receiver.url}?v=2"}),
        "retry": lambda: ask(running, "POST", f"/deliveries/{paused['id']}/retry"),
        "replay": lambda: ask(running, "POST", f"/webhooks/{made['id']}/replay", {"ids": [held["event"]]}),
    }[resumes]()
    async with asyncio.timeout(PATIENCE):
        while held["event"] not in {one.headers["webhook-id"] for one in receiver.requests}:
            receiver.request_received.clear()
            await receiver.request_received.wait()


@pytest.mark.parametrize("rotations", [1, 2])
async def test_both_secrets_sign_after_a_rotation(
    running: GatewayProcess, receiver: WebhookReceiver, rotations: int
) -> None:
    """A test event is verified with the new secret and with the old one, also if a rotation is repeated."""
    made = await ask(running, "POST", "/accounts/me/webhooks", {"url": receiver.url})
    rotated = [await ask(running, "POST", f"/webhooks/{made['id']}/rotate") for _ in range(rotations)]
    await ask(running, "POST", f"/webhooks/{made['id']}/test")
    (request,) = await wait_for_requests(receiver, 1)
    for secret in (made["secret"], *(one["secret"] for one in rotated)):
        assert Webhook(secret).verify(request.body, request.headers)["type"] == "webhook.test"
    assert len(request.headers["webhook-signature"].split()) == 1 + rotations


async def test_a_secret_can_be_chosen_when_it_is_rotated(
    running: GatewayProcess, receiver: WebhookReceiver
) -> None:
    """It is not returned, the earlier one signs too, and the same one again changes nothing."""
    made = await ask(running, "POST", "/accounts/me/webhooks", {"url": receiver.url})
    chosen = {"secret": f"whsec_{base64.b64encode(bytes(range(32))).decode()}"}
    for _ in range(2):
        assert (await ask(running, "POST", f"/webhooks/{made['id']}/rotate", chosen))["secret"] is None
    await ask(running, "POST", f"/webhooks/{made['id']}/test")
    (request,) = await wait_for_requests(receiver, 1)
    for secret in (made["secret"], chosen["secret"]):
        assert Webhook(secret).verify(request.body, request.headers)["type"] == "webhook.test"
    assert len(request.headers["webhook-signature"].split()) == 2


async def test_five_earlier_secrets_sign_after_many_rotations(
    running: GatewayProcess, receiver: WebhookReceiver
) -> None:
    """A further rotation drops the oldest secret, so that the header stays short."""
    made = await ask(running, "POST", "/accounts/me/webhooks", {"url": receiver.url})
    rotated = [await ask(running, "POST", f"/webhooks/{made['id']}/rotate") for _ in range(7)]
    await ask(running, "POST", f"/webhooks/{made['id']}/test")
    (request,) = await wait_for_requests(receiver, 1)
    assert len(request.headers["webhook-signature"].split()) == 6
    for one in rotated[1:]:
        assert Webhook(one["secret"]).verify(request.body, request.headers)["type"] == "webhook.test"
    for one in (made, rotated[0]):
        with pytest.raises(WebhookVerificationError):
            Webhook(one["secret"]).verify(request.body, request.headers)


async def test_a_dead_letter_is_sent_again_on_request(
    running: GatewayProcess, receiver: WebhookReceiver
) -> None:
    """After the last attempt a delivery is dead and listed; it can be dropped, and sent again."""
    receiver.script.extend([respond(500)] * 4)
    await start_turn(running, "!echo hello", webhook={"url": receiver.url})
    dead = await wait_for_state(running, "dead")
    assert len(dead["attempts"]) == 4
    dropped = await ask(running, "POST", f"/deliveries/{dead['id']}/drop")
    assert (dropped["state"], dropped["error"]) == ("suppressed", "dropped")
    await ask(running, "POST", f"/deliveries/{dead['id']}/retry")
    await wait_for_requests(receiver, 5)
    assert (await wait_for_state(running, "delivered"))["id"] == dead["id"]


NEVER_CALLED = (
    "http://169.254.169.254/latest/",
    "https://10.0.0.1/x",
    "http://[fd00::1]/",
    "https://8.8.8.8:22/",
)


async def test_a_webhook_that_could_never_be_called_is_refused(running: GatewayProcess) -> None:
    """The answer is a 422 with the reason, for turns, for records and their changes, and for agents."""
    good = {"url": "https://hooks.example.org/x", "name": "good"}
    await ask(running, "POST", "/accounts/me/webhooks", good)
    for url in NEVER_CALLED:
        agent = {"name": "hooked", "config": {"hooks": {"webhook": {"url": url}}}}
        turn = {"input": "!echo hello", "webhook": {"url": url}}
        refused: tuple[tuple[str, str, dict[str, Any], str], ...] = (
            ("POST", "/agents/default/turns", turn, "/webhook/url"),
            ("POST", "/accounts/me/webhooks", {"url": url}, "/url"),
            ("PATCH", "/accounts/me/webhooks/good", {"url": url}, "/url"),
            ("POST", "/accounts/me/agents", agent, "/config/hooks/webhook/url"),
        )
        async with running.http() as session:
            for method, path, body, pointer in refused:
                async with session.request(method, path, json=body) as answer:
                    problem = await answer.json()
                assert (answer.status, [one["pointer"] for one in problem["errors"]]) == (422, [pointer])
                assert "would never be called" in problem["errors"][0]["detail"]


async def test_an_ordered_endpoint_gets_one_event_after_the_other(
    running: GatewayProcess, receiver: WebhookReceiver
) -> None:
    """The second result waits until the first, refused twice, has arrived; elsewhere nothing waits."""
    receiver.script.extend([respond(500), respond(500)])
    made = await ask(
        running,
        "POST",
        "/accounts/me/webhooks",
        {"url": receiver.url, "events": ["agent.finished"], "ordered": True},
    )
    assert made["ordered"] is True
    first = await start_turn(running, "!echo first", conversation="one")
    await wait_for_requests(receiver, 1)
    second = await start_turn(running, "!echo second", conversation="two")
    reported = [json.loads(one.body)["data"]["turnId"] for one in await wait_for_requests(receiver, 4)]
    assert reported == [first["turnId"]] * 3 + [second["turnId"]]
    shown = await ask(running, "GET", f"/accounts/me/webhooks/{made['id']}")
    assert shown["failing_since"] is None
