"""M5 and M6: a revoked key is over at once everywhere; no form of asking escapes the count of failures."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path

import aiohttp
import pytest

from api_server import ApiClient, open_api_server
from bench.chaos.deployment import KEYS, REPLICAS, large_nats_server
from gateway.web.http.context import WebLimits
from gateway_process import GatewayProcess, gateway
from postgres import PostgresCluster, PostgresUnavailable, postgres_cluster

WITHIN = 1.0
"""Seconds a replica may remember a key that another one revoked."""

CUT_WITHIN = 5.0
SLACK = 3.0
"""Seconds more on a machine that others use too."""


async def _made(process: GatewayProcess, session: aiohttp.ClientSession) -> tuple[ApiClient, ApiClient, str]:
    """Return the default account's client, that of a second key, and the key's id."""
    mine = ApiClient(session=session, url=process.url, key=process.key)
    made = await mine.call("POST", "/accounts/me/keys", {"name": "second"})
    return mine, ApiClient(session=session, url=process.url, key=made.body["key"]), str(made.body["id"])


async def _until_refused(client: ApiClient, seconds: float) -> float:
    """Ask until 401; return how long that took."""
    begun = time.monotonic()
    async with asyncio.timeout(seconds):
        while (await client.call("GET", "/accounts/me")).status != 401:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.02)
    return time.monotonic() - begun


async def _closed(socket: aiohttp.ClientWebSocketResponse, seconds: float) -> int | None:
    """Read until the gateway closes; return its code."""
    async with asyncio.timeout(seconds):
        async for _ in socket:
            pass
    return socket.close_code


async def test_m5_a_revoked_key_is_over_and_its_sockets_are_cut(tmp_path: Path) -> None:
    """Revoked while requests, a socket and server-sent events use it, a key ends all of them at once."""
    async with gateway(tmp_path / "data") as process, aiohttp.ClientSession() as session:
        mine, second, key = await _made(process, session)
        said = {"input": "!true", "conversation": "watched"}
        assert (await second.call("POST", "/agents/default/turns", said)).status == 202
        bearer = {"Authorization": f"Bearer {second.key}"}
        events = f"{process.url}/conversations/watched/events"
        stream = {**bearer, "Accept": "text/event-stream"}
        async with (
            session.ws_connect(f"{process.url}/ws", headers=bearer) as socket,
            session.get(events, headers=stream) as following,
        ):
            await socket.send_json({"type": "subscribe", "conversation": "watched", "after": 0})
            await socket.receive(timeout=20)
            assert (await mine.call("DELETE", f"/accounts/me/keys/{key}")).status == 204
            assert (await second.call("GET", "/accounts/me")).status == 401
            assert await _closed(socket, CUT_WITHIN + SLACK) == 4401
            async with asyncio.timeout(CUT_WITHIN + SLACK):
                with suppress(aiohttp.ClientPayloadError):
                    await following.content.read()
        assert (await mine.call("GET", "/accounts/me")).status == 200


WAITING_REQUESTS = {
    "/v1/chat/completions": {"model": "default", "messages": [{"role": "user", "content": "!sleep 600"}]},
    "/v1/responses": {"model": "default", "input": "!sleep 600"},
    "/a2a": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "!sleep 600"}]}},
    },
}


async def _count_running(client: ApiClient) -> int:
    return len((await client.call("GET", "/turns?state=running")).body["items"])


async def test_m5_a_request_that_waits_ends_with_its_key(tmp_path: Path) -> None:
    """The reason is the key and not the gateway: a client that repeats the request would not succeed."""
    async with gateway(tmp_path / "data") as process, aiohttp.ClientSession() as session:
        mine, second, key = await _made(process, session)
        waiting = [
            asyncio.create_task(second.call("POST", path, body)) for path, body in WAITING_REQUESTS.items()
        ]
        async with asyncio.timeout(60):
            while await _count_running(mine) < len(waiting):  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.05)
            await mine.call("DELETE", f"/accounts/me/keys/{key}")
            answers = await asyncio.gather(*waiting)
    assert [answer.status for answer in answers] == [401] * len(waiting)
    assert all("revoked" in str(answer.body) for answer in answers)


async def test_m5_a_key_revoked_on_one_replica_is_over_on_the_other(tmp_path: Path) -> None:
    """The other replica refuses it within a second and cuts its socket within five."""
    try:
        with postgres_cluster() as server:
            await _two_replicas(tmp_path, server)
    except PostgresUnavailable as error:
        pytest.skip(f"two replicas need PostgreSQL: {error}")


async def _two_replicas(directory: Path, server: PostgresCluster) -> None:
    nats = large_nats_server(directory / "nats")
    await nats.start()
    env = {
        "DOVECOTE_NATS_URL": nats.url.replace("://", f"://{nats.token}@"),
        "DOVECOTE_DATABASE_URL": server.create_database(),
        "DOVECOTE_SECRET_KEYS": KEYS,
        **REPLICAS,
    }
    try:
        async with (
            gateway(directory / "one", env=env) as one,
            gateway(directory / "two", env=env) as two,
            aiohttp.ClientSession() as session,
        ):
            mine, second, key = await _made(one, session)
            there = ApiClient(session=session, url=two.url, key=second.key)
            assert (await there.call("GET", "/accounts/me")).status == 200
            bearer = {"Authorization": f"Bearer {second.key}"}
            async with session.ws_connect(f"{two.url}/ws", headers=bearer) as socket:
                assert (await mine.call("DELETE", f"/accounts/me/keys/{key}")).status == 204
                begun = time.monotonic()
                assert await _until_refused(there, WITHIN + SLACK) < WITHIN + SLACK
                left = CUT_WITHIN + SLACK - (time.monotonic() - begun)
                assert await _closed(socket, left) == 4401
    finally:
        await nats.kill()


CREDENTIAL_FORMS: tuple[dict[str, str], ...] = (
    {"Authorization": "Bearer dvk_" + "a" * 43},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "bearer wrong"},
    {"Authorization": "Bearer wrong", "X-Forwarded-For": "203.0.113.9"},
    {"Authorization": "Bearer wrong", "X-Forwarded-For": "::ffff:127.0.0.1"},
    {"Authorization": "Bearer wrong", "X-Forwarded-For": "127.0.0.1, 10.0.0.1"},
    {"Authorization": "Bearer wrong", "Forwarded": "for=203.0.113.9"},
    {"Authorization": "Bearer wrong", "X-Real-Ip": "203.0.113.9"},
    {"Authorization": "Bearer wrong", "Cf-Connecting-Ip": "203.0.113.9"},
    {"Authorization": "Bearer wrong", "X-Device-Token": "bogus"},
)
PATHS = ("/accounts/me", "/conversations", "/accounts/me/keys?deviceToken=bogus", "/jobs/job_1")


async def test_m6_no_form_of_failing_escapes_the_count(tmp_path: Path) -> None:
    """Thirty failures on many routes, with many fields and claimed addresses, lock the address at thirty."""
    async with open_api_server(tmp_path, bounds=WebLimits(auth_failures=30)) as face:
        seen = []
        for turn in range(34):
            path = PATHS[turn % len(PATHS)]
            seen.append(
                (
                    await face.anonymous.call("GET", path, **CREDENTIAL_FORMS[turn % len(CREDENTIAL_FORMS)])
                ).status
            )
        assert seen == [401] * 30 + [429] * 4
        assert (await face.mine.call("GET", "/accounts/me")).status == 429


async def test_m6_the_operators_door_has_the_same_count(tmp_path: Path) -> None:
    """Guessing keys of accounts and of the operator is one count for an address."""
    async with open_api_server(tmp_path, bounds=WebLimits(auth_failures=6)) as face:
        wrong = {"Authorization": "Bearer wrong"}
        statuses = []
        for method, path in (("GET", "/accounts/me"), ("POST", "/accounts")) * 4:
            body = {"name": "x"} if method == "POST" else None
            statuses.append((await face.anonymous.call(method, path, body, **wrong)).status)
    assert statuses == [401] * 6 + [429] * 2


@pytest.mark.parametrize("trusted", [True, False])
async def test_m6_addresses_are_believed_from_configured_proxies_only(tmp_path: Path, trusted: bool) -> None:
    """Behind a proxy that is configured each client has its own count; without one, there is one peer."""
    proxies = (ip_network("127.0.0.0/8"),) if trusted else ()
    async with open_api_server(tmp_path, bounds=WebLimits(auth_failures=3), trusted_proxies=proxies) as face:
        statuses = []
        for last in range(6):
            forwarded = {"Authorization": "Bearer wrong", "X-Forwarded-For": f"203.0.113.{last}"}
            statuses.append((await face.anonymous.call("GET", "/accounts/me", **forwarded)).status)
    assert statuses == ([401] * 6 if trusted else [401] * 3 + [429] * 3)
