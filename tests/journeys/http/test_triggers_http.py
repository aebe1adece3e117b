"""Triggers from outside: a signed request starts one turn, and a repeated one starts none."""

from __future__ import annotations

import hmac
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp

from commands import run_to_end
from delivery.webhooks.signing import new_secret, sign
from gateway_process import gateway

PATH = "/accounts/me/triggers"


async def test_a_signed_request_starts_one_turn(tmp_path: Path) -> None:
    """Both kinds of signatures start a turn once for each id; everything else starts none."""
    async with (
        gateway(tmp_path / "data") as process,
        process.http() as session,
        aiohttp.ClientSession(process.url) as outsider,
    ):
        new = {"conversation": "alerts", "template": "!echo something happened"}
        async with session.post(PATH, json=new) as answer:
            assert answer.status == 201
            made = await answer.json()
        assert made["id"].startswith("trg_")
        async with session.get(PATH) as answer:
            (listed,) = (await answer.json())["items"]
        assert "secret" not in listed
        async with session.post(PATH, json=new | {"template": "!echo {{body}}"}) as answer:
            assert (answer.status, (await answer.json())["errors"][0]["pointer"]) == (422, "/template")
        body = json.dumps({"action": "opened"}).encode()

        async def post(headers: dict[str, str], content: bytes = body) -> tuple[int, str]:
            async with outsider.post(made["path"], data=content, headers=headers) as response:
                found = await response.json()
                return response.status, str(found.get("turnId"))

        standard = sign([made["secret"]], message_id="one", moment=datetime.now(UTC), body=body)
        first = await post(standard)
        assert first[0] == 202
        assert await post(standard) == first
        digest = hmac.new(made["secret"].encode(), body, "sha256").hexdigest()
        hub = {"X-Hub-Signature-256": f"sha256={digest}", "X-GitHub-Delivery": "two"}
        second = await post(hub)
        assert (second[0], second[1] != first[1]) == (202, True)
        assert await post(hub) == second
        assert (await post(standard, body + b" "))[0] == 401
        for path, key in ((made["path"], made["secret"]), ("/triggers/trg_unknown", new_secret())):
            late = sign([key], message_id="x", moment=datetime.now(UTC) + timedelta(hours=1), body=body)
            async with outsider.post(path, data=body, headers=late) as answer:
                assert answer.status == 401
                assert "webhook-timestamp" in (await answer.json())["detail"]
        assert (await post({}))[0] == 401
        assert (await post({"X-Hub-Signature-256": f"sha256={digest}"}))[0] == 400
        assert (await post(standard, b"x" * 300_000))[0] == 413
        async with session.get(f"/conversations/{listed['conversation']}/snapshot") as answer:
            messages = (await answer.json())["messages"]
        assert len([one for one in messages if one["role"] == "user"]) == 2
        async with session.delete(f"{PATH}/{made['id']}") as answer:
            assert answer.status == 204
        assert (await post(hub))[0] == 401


async def test_a_request_that_does_not_fit_into_the_storage_is_refused(tmp_path: Path) -> None:
    """A trigger's input counts like a message over HTTP: 413 names the limit, and less is accepted."""
    env = {"DOVECOTE_FILES__ACCOUNT_BYTES": "20000"}
    async with gateway(tmp_path / "data", env=env) as process, process.http() as session:
        async with session.post(PATH, json={"conversation": "alerts", "template": "{{body}}"}) as answer:
            made = await answer.json()
        for content, expected in ((b"x" * 30_000, 413), (b"x", 202)):
            body = b'"' + content + b'"'
            headers = sign([made["secret"]], message_id="one", moment=datetime.now(UTC), body=body)
            async with (
                aiohttp.ClientSession(process.url) as outsider,
                outsider.post(made["path"], data=body, headers=headers) as answer,
            ):
                assert answer.status == expected
                assert expected == 202 or "20 kB" in (await answer.json())["detail"]


async def test_a_full_queue_names_the_time_of_the_next_attempt(tmp_path: Path) -> None:
    """A sender gets 429 with Retry-After once its conversation has as many waiting turns as it may have."""
    async with (
        gateway(tmp_path / "data") as process,
        process.http() as session,
        aiohttp.ClientSession(process.url) as outsider,
    ):
        new = {"conversation": "alerts", "template": "!sleep 300"}
        async with session.post(PATH, json=new) as answer:
            made = await answer.json()
        refused = None
        for number in range(60):
            signed = sign([made["secret"]], message_id=str(number), moment=datetime.now(UTC), body=b"{}")
            async with outsider.post(made["path"], data=b"{}", headers=signed) as answer:
                if answer.status != 202:
                    refused = answer.status, answer.headers["Retry-After"]
                    break
        assert refused == (429, "5")


async def test_what_begins_later_needs_an_agent_that_exists(tmp_path: Path) -> None:
    """For the conversation of a deleted agent there is neither a new trigger nor a new schedule."""
    async with gateway(tmp_path / "data") as process, process.http() as session:
        async with session.post("/accounts/me/agents", json={"name": "old"}) as answer:
            assert answer.status == 201, await answer.text()
        turn = {"input": "!echo x", "conversation": "reports"}
        async with session.post("/agents/old/turns", json=turn) as answer:
            assert answer.status == 202, await answer.text()
        async with session.delete("/accounts/me/agents/old") as answer:
            assert answer.status == 204, await answer.text()
        later = {PATH: {"template": "x"}, "/accounts/me/schedules": {"text": "x", "every": "PT1H"}}
        for path, fields in later.items():
            async with session.post(path, json=fields | {"conversation": "reports"}) as answer:
                problem = await answer.json()
            assert (answer.status, problem["errors"][0]["pointer"]) == (422, "/conversation"), problem
            assert "an agent that no longer exists" in problem["errors"][0]["detail"]


async def test_a_sender_repeats_what_no_key_of_the_gateway_can_check(tmp_path: Path) -> None:
    """While another replica rotates the key that encrypts secrets, a request gets 503 instead of 401."""
    old, new = "old-" + "o" * 40, "new-" + "n" * 40
    async with (
        gateway(tmp_path / "data", env={"DOVECOTE_SECRET_KEYS": old}) as process,
        process.http() as session,
        aiohttp.ClientSession(process.url) as outsider,
    ):
        async with session.post(PATH, json={"conversation": "alerts", "template": "x"}) as answer:
            made = await answer.json()
        words = ("secrets", "reencrypt", "--data", str(tmp_path / "data"))
        code, _, errors = await run_to_end(*words, cwd=tmp_path, DOVECOTE_SECRET_KEYS=f"{new},{old}")
        assert (code, "encrypts with another key" in errors) == (1, True), errors
        signed = sign([made["secret"]], message_id="one", moment=datetime.now(UTC), body=b"{}")
        async with outsider.post(made["path"], data=b"{}", headers=signed) as answer:
            assert (answer.status, answer.headers.get("Retry-After")) == (503, "30")
    assert [line for line in process.log if "secret.decryption_failed" in line and made["id"] in line]
