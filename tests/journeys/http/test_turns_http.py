"""A whole conversation over HTTP with a real gateway, and what another account sees of it: nothing."""

from __future__ import annotations

import asyncio
import re
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api_server import ApiClient, ApiResponse
from gateway_process import GatewayProcess, gateway

ADMIN_KEY = "an-admin-key-of-the-operator-in-tests"
UNUSED_URL = f"http://{socket.gethostname()}/hook"
"""A name of this machine: only the connection shows that its address is refused."""


SQLITE_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")
"""SQLite compares moments as texts, so all must have one format."""


def stored_moments(database: Path) -> list[tuple[str, str]]:
    """Return every moment that a SQLite database holds, with its table and column."""
    with closing(sqlite3.connect(database)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        columns = [
            (table, column)
            for (table,) in tables
            for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({table})")
            if kind == "DATETIME"
        ]
        return [
            (f"{table}.{column}", text)
            for table, column in columns
            for (text,) in connection.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL")
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsGateway:
    """A running gateway with two accounts."""

    process: GatewayProcess
    mine: ApiClient
    other: ApiClient

    async def until(self, path: str, *states: str) -> ApiResponse:
        """Ask until the answer's state is one of these."""
        async with asyncio.timeout(30):
            while True:
                answer = await self.mine.call("GET", path)
                if answer.body.get("state") in states:
                    return answer
                await asyncio.sleep(0.02)

    async def holds(self, path: str, condition: Callable[[Any], bool]) -> None:
        """Ask until the answer fulfils a condition."""
        async with asyncio.timeout(30):
            while not condition((await self.mine.call("GET", path)).body):  # noqa: ASYNC110 - the gateway is another process
                await asyncio.sleep(0.02)

    async def turn(self, text: str, conversation: str = "demo", **more: object) -> ApiResponse:
        """Ask the default agent and return the final status."""
        taken = await self.mine.call(
            "POST", "/agents/default/turns", {"input": text, "conversation": conversation, **more}
        )
        assert taken.status == 202, taken.body
        return await self.until(f"/status/{taken.body['turnId']}", "completed", "failed", "cancelled")


@pytest.fixture
async def turns_gateway(tmp_path: Path) -> AsyncIterator[TurnsGateway]:
    """Run a gateway that serves two accounts."""
    env = {"DOVECOTE_ADMIN_KEY": ADMIN_KEY}
    async with gateway(tmp_path / "data", env=env) as process, aiohttp.ClientSession() as session:
        operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
        made = await operator.call("POST", "/accounts", {"name": "other"})
        yield TurnsGateway(
            process=process,
            mine=ApiClient(session=session, url=process.url, key=process.key),
            other=ApiClient(session=session, url=process.url, key=made.body["key"]),
        )


async def test_a_turn_is_asked_for_and_its_log_kept(turns_gateway: TurnsGateway) -> None:
    """The command's output is the turn's, and the run log has the call with its arguments."""
    done = await turns_gateway.turn("!echo over http")
    assert "over http" in done.body["output"]
    log = (await turns_gateway.mine.call("GET", f"/turns/{done.body['id']}/log")).body["items"]
    assert [(step["tool"], step["state"]) for step in log] == [("bash", "done")]
    assert log[0]["args"]["command"] == "echo over http"
    moments = stored_moments(turns_gateway.process.data / "dovecote.db")
    assert "turns.started_at" in {where for where, _ in moments}
    assert not [(where, text) for where, text in moments if not SQLITE_MOMENT.fullmatch(text)]


async def test_the_same_turn_twice_is_one_turn(turns_gateway: TurnsGateway) -> None:
    """An Idempotency-Key makes a repetition the same turn, also when both come at once."""
    body = {"input": "!echo once", "conversation": "demo"}
    answers = await asyncio.gather(
        *(
            turns_gateway.mine.call("POST", "/agents/default/turns", body, Idempotency_Key="k")
            for _ in range(5)
        )
    )
    assert {answer.status for answer in answers} == {202}
    assert len({answer.body["turnId"] for answer in answers}) == 1


async def test_a_running_command_is_cancelled(turns_gateway: TurnsGateway) -> None:
    """Cancelling ends the command at once, and the next turn runs."""
    taken = await turns_gateway.mine.call(
        "POST", "/agents/default/turns", {"input": "!sleep 300", "conversation": "c"}
    )
    turn = taken.body["turnId"]
    await turns_gateway.until(f"/status/{turn}", "running")
    cancelled = await turns_gateway.mine.call("POST", f"/turns/{turn}/cancel")
    assert cancelled.status == 202
    assert (await turns_gateway.until(f"/status/{turn}", "cancelled")).body["finished_at"]
    assert (await turns_gateway.turn("!echo next", "c")).body["state"] == "completed"
    again = await turns_gateway.mine.call("POST", f"/turns/{turn}/cancel")
    assert (again.status, again.body["state"]) == (202, "cancelled")


async def test_a_job_is_listed_read_and_stopped(turns_gateway: TurnsGateway) -> None:
    """A background job shows its output while it runs, and stops on request."""
    await turns_gateway.mine.call("POST", "/accounts/me/webhooks", {"url": UNUSED_URL, "events": ["job.*"]})
    await turns_gateway.turn("!&echo started; sleep 300")
    (job,) = (await turns_gateway.mine.call("GET", "/jobs?state=running")).body["items"]
    await turns_gateway.holds(f"/jobs/{job['id']}/logs", lambda log: "started" in log["output"])
    stopped = await turns_gateway.mine.call("POST", f"/jobs/{job['id']}/stop")
    assert (stopped.status, stopped.body["state"]) == (202, "stopped")
    status = (await turns_gateway.mine.call("GET", f"/status/{job['id']}")).body
    assert (status["kind"], status["state"]) == ("job", "stopped")
    assert status["follow_up_turn"].startswith("trn_")
    assert [owed["type"] for owed in status["deliveries"]] == ["job.started", "job.stopped"]


@pytest.mark.parametrize("path", ["/turns", "/jobs", "/deliveries", "/approvals", "/accounts/me/schedules"])
async def test_lists_are_filtered_by_the_name_of_a_conversation(
    turns_gateway: TurnsGateway, path: str
) -> None:
    """The name and the id give the same items; an unknown conversation is 404 and not an empty list."""
    done = await turns_gateway.turn("!&echo listed", "listed")
    by_name = (await turns_gateway.mine.call("GET", f"{path}?conversation=listed")).body["items"]
    by_id = await turns_gateway.mine.call("GET", f"{path}?conversation={done.body['conversationId']}")
    assert [one["id"] for one in by_name] == [one["id"] for one in by_id.body["items"]]
    assert by_name or path not in {"/turns", "/jobs"}
    assert (await turns_gateway.mine.call("GET", f"{path}?conversation=unknown")).status == 404


async def test_another_account_sees_nothing_of_it(turns_gateway: TurnsGateway) -> None:
    """Turns, conversations, jobs, deliveries, webhooks and approvals of one account are 404 to the other."""
    hook = (
        await turns_gateway.mine.call("POST", "/accounts/me/webhooks", {"url": UNUSED_URL, "name": "h"})
    ).body["id"]
    done = await turns_gateway.turn("!&sleep 300", webhook={"id": "h"})
    conversation, turn = done.body["conversationId"], done.body["id"]
    job = (await turns_gateway.mine.call("GET", "/jobs")).body["items"][0]["id"]
    delivery = (await turns_gateway.mine.call("GET", "/deliveries")).body["items"][0]["id"]
    reading = [
        f"/status/{turn}",
        f"/status/{job}",
        f"/turns/{turn}/log",
        f"/trace/{turn}",
        f"/jobs/{job}",
        f"/jobs/{job}/logs",
        f"/deliveries/{delivery}",
        *(f"/conversations/{name}" for name in (conversation, "demo")),
        *(f"/conversations/{name}/snapshot" for name in (conversation, "demo")),
        *(f"/conversations/{name}/events?after=0" for name in (conversation, "demo")),
    ]
    changing = [
        f"/turns/{turn}/cancel",
        f"/jobs/{job}/stop",
        f"/deliveries/{delivery}/retry",
        f"/deliveries/{delivery}/drop",
        f"/webhooks/{hook}/test",
        f"/webhooks/{hook}/rotate",
    ]
    for path in reading:
        assert (await turns_gateway.mine.call("GET", path)).status == 200, path
        assert (await turns_gateway.other.call("GET", path)).status == 404, path
    for path in changing:
        assert (await turns_gateway.other.call("POST", path)).status == 404, path
    say = await turns_gateway.other.call("POST", f"/conversations/{conversation}/messages", {"text": "hi"})
    replay = await turns_gateway.other.call(
        "POST", f"/webhooks/{hook}/replay", {"after": "2026-01-01T00:00:00Z"}
    )
    ask = await turns_gateway.other.call(
        "POST", "/agents/default/turns", {"input": "x", "webhook": {"id": hook}}
    )
    assert (say.status, replay.status, ask.status) == (404, 404, 404)
    for path in ("/conversations", "/jobs", "/deliveries", "/approvals", "/accounts/me/webhooks"):
        assert (await turns_gateway.other.call("GET", path)).body["items"] == [], path
    own = await turns_gateway.mine.call("POST", f"/jobs/{job}/stop")
    assert own.body["state"] == "stopped"


async def test_a_dead_delivery_is_listed_tried_again_and_dropped(turns_gateway: TurnsGateway) -> None:
    """What the egress rules refuse is dead with its reason; a retry is another attempt."""
    await turns_gateway.mine.call("POST", "/accounts/me/webhooks", {"url": UNUSED_URL, "name": "h"})
    sent = await turns_gateway.mine.call("POST", "/webhooks/h/test")
    delivery = f"/deliveries/{sent.body['delivery']}"
    dead = await turns_gateway.until(delivery, "dead")
    assert "refused" in dead.body["error"]
    assert len(dead.body["attempts"]) == 1
    assert (await turns_gateway.mine.call("POST", f"{delivery}/retry")).status == 202
    await turns_gateway.holds(
        delivery, lambda shown: len(shown["attempts"]) == 2 and shown["state"] == "dead"
    )
    listed = (await turns_gateway.mine.call("GET", "/deliveries?state=dead")).body["items"]
    assert [one["id"] for one in listed] == [sent.body["delivery"]]


async def test_a_webhook_made_later_is_sent_earlier_events(turns_gateway: TurnsGateway) -> None:
    """A replay by time plans what the endpoint wants and never had; by id exactly what is named."""
    done = await turns_gateway.turn("!echo hi")
    body = {"url": UNUSED_URL, "name": "late", "events": ["turn.*", "message.completed"]}
    await turns_gateway.mine.call("POST", "/accounts/me/webhooks", body)
    by_time = await turns_gateway.mine.call(
        "POST", "/webhooks/late/replay", {"after": "2026-01-01T00:00:00Z"}
    )
    assert by_time.status == 202
    types = {one["type"] for one in (await turns_gateway.mine.call("GET", "/deliveries")).body["items"]}
    assert types == {"turn.queued", "turn.started", "turn.completed", "message.completed"}
    events = await turns_gateway.process.events(done.body["conversationId"])
    received = next(event for event in events if event["type"] == "message.received")
    by_id = await turns_gateway.mine.call(
        "POST", "/webhooks/late/replay", {"ids": [received["id"], "evt_of_nobody"]}
    )
    assert by_id.body == {"replayed": 1, "more": False, "next": None}
    rest = {"after": "2026-01-01T00:00:00Z", "cursor": "evt_0"}
    unknown = await turns_gateway.mine.call("POST", "/webhooks/late/replay", rest)
    assert (unknown.status, unknown.body["errors"][0]["pointer"]) == (422, "/cursor")
    for wrong in ({}, {"after": "9999-12-31T23:59:59-12:00"}):
        refused = await turns_gateway.mine.call("POST", "/webhooks/late/replay", wrong)
        assert (refused.status, refused.body["errors"][0]["pointer"]) == (422, "/after")


async def test_a_snapshot_continues_in_the_stream(turns_gateway: TurnsGateway) -> None:
    """Events after a snapshot's seq hold nothing the snapshot misses, and the snapshot holds the talk."""
    await turns_gateway.turn("!echo one")
    shot = (await turns_gateway.mine.call("GET", "/conversations/demo/snapshot")).body
    assert [message["role"] for message in shot["messages"]] == ["user", "assistant"]
    await turns_gateway.turn("!echo two")
    page = await turns_gateway.mine.call("GET", f"/conversations/demo/events?after={shot['seq']}")
    said = [event["data"]["text"] for event in page.body["items"] if event["type"] == "message.received"]
    assert said[-1] == "!echo two"


async def test_a_waiting_queue_is_bounded(turns_gateway: TurnsGateway) -> None:
    """The fifty-first waiting message is refused politely; another conversation is not held up."""
    await turns_gateway.mine.call(
        "POST", "/agents/default/turns", {"input": "!sleep 300", "conversation": "full"}
    )
    refused = None
    for _ in range(60):
        answer = await turns_gateway.mine.call("POST", "/conversations/full/messages", {"text": "!true"})
        if answer.status != 202:
            refused = answer
            break
    assert refused is not None
    assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
    assert (await turns_gateway.turn("!echo free", "other")).body["state"] == "completed"


async def _send_over_websocket(turns_gateway: TurnsGateway, text: str) -> dict[str, Any]:
    """Send a message twice with one id, and return the second frame that accepts it."""
    url = f"{turns_gateway.process.url}/ws"
    async with turns_gateway.process.http() as session, session.ws_connect(url) as socket:
        for _ in range(2):
            await socket.send_json({"type": "send", "conversation": "demo", "text": text, "id": text})
            accepted: dict[str, Any] = await socket.receive_json()
    return accepted


async def test_commands_are_commands_on_every_surface(turns_gateway: TurnsGateway) -> None:
    """Messages over HTTP and the WebSocket are commands as in chats; `literal` sends the text itself."""
    mine = turns_gateway.mine
    started = await mine.call(
        "POST", "/agents/default/turns", {"input": "!sleep 300", "conversation": "demo"}
    )
    await turns_gateway.until(f"/status/{started.body['turnId']}", "running")
    status = await mine.call("POST", "/conversations/demo/messages", {"text": "/status"})
    assert (status.status, status.body["command"]) == (202, "status")
    assert status.body["reply"].startswith("Working on `!sleep 300`.")
    stopped = await _send_over_websocket(turns_gateway, "/stop")
    assert (stopped["turn"], stopped["command"], stopped["conversation"]) == (
        None,
        "stop",
        started.body["conversationId"],
    )
    ended = await turns_gateway.until(f"/status/{started.body['turnId']}", "cancelled")
    assert ended.body["error"] == "cancelled"
    literal = await mine.call("POST", "/conversations/demo/messages", {"text": "/help", "literal": True})
    unknown = await mine.call("POST", "/conversations/demo/messages", {"text": "/etc/hosts is a file"})
    direct = await mine.call("POST", "/agents/default/turns", {"input": "/stop", "conversation": "demo"})
    for answer in (literal, unknown, direct):
        await turns_gateway.until(f"/status/{answer.body['turnId']}", "completed")
    said = (await mine.call("GET", "/conversations/demo/snapshot")).body["messages"]
    texts = [message["text"] for message in said if message["role"] == "user"]
    assert texts == ["!sleep 300", "/help", "/etc/hosts is a file", "/stop"]
    notices = [message["text"] for message in said if message["role"] == "notice"]
    assert [text.split(".")[0] for text in notices] == ["Working on `!sleep 300`", "Stopping 1 turn"]


WRONG: list[tuple[str, object, int]] = [
    ("/agents/nobody/turns", {"input": "x"}, 404),
    ("/agents/default/turns", {"input": ""}, 422),
    ("/agents/default/turns", {"input": 5}, 422),
    ("/agents/default/turns", {"input": "x", "conversation": "cnv_nobody"}, 404),
    ("/agents/default/turns", {"input": "x", "webhook": {}}, 422),
    ("/agents/default/turns", {"input": "x", "webhook": {"url": UNUSED_URL, "id": "h"}}, 422),
    ("/agents/default/turns", {"input": "x", "webhook": {"url": "javascript:1"}}, 422),
    ("/agents/default/turns", {"input": "x", "webhook": {"url": UNUSED_URL, "secret": "x"}}, 422),
    ("/agents/default/turns", {"input": "x" * 200_001}, 422),
    ("/conversations/nobody/messages", {"text": "x"}, 404),
    ("/turns/trn_nobody/cancel", None, 404),
    ("/approvals/apr_nobody", {"decision": "approve"}, 404),
    ("/approvals/apr_nobody", {"decision": "perhaps"}, 422),
    ("/jobs/job_nobody/stop", None, 404),
    ("/sandbox-jobs/job_nobody/complete", {"exit_code": 0, "output": ""}, 401),
    ("/deliveries/dlv_nobody/retry", None, 404),
    ("/webhooks/whk_nobody/test", None, 404),
]


async def test_what_cannot_be_is_a_4xx(turns_gateway: TurnsGateway) -> None:
    """Wrong shapes are 422, unknown ids 404, a wrong job token 401."""
    for path, body, status in WRONG:
        answer = await turns_gateway.mine.call("POST", path, body)
        assert answer.status == status, (path, body, answer.body)
