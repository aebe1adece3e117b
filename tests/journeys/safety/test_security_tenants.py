"""M14 and M2: no account reads, changes or impersonates another, by any id or field, on any route."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Container, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import pytest_asyncio

from api_server import ADMIN_KEY, ApiClient
from gateway.web.http.auth import AdminAccess, KeyAccess, SignedLinkAccess
from gateway.web.http.route import ApiRoute
from gateway.web.routes import ROUTES
from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, echo

CANARY = "canary-of-the-first-account"
FILE = "knowledge/a.txt"
PATH_PARAMETER = re.compile(r"\{(\w+)[^}]*\}")
KEYED = [route for route in ROUTES if isinstance(route.access, KeyAccess | SignedLinkAccess)]
READS = [route for route in KEYED if route.method == "GET"]
ONE = [route for route in READS if "{" in route.path]
AUDIT = "/accounts/me/audit"
LISTS = [route for route in READS if "{" not in route.path and route.path != AUDIT]
CHANGES = [route for route in KEYED if route.method != "GET" and "{" in route.path]

ODD_IDS = (
    "*",
    ">",
    "a.b",
    ".",
    "..",
    "../x",
    "../../dovecote.db",
    "a\r\nb",
    "a\x00b",
    "%",
    "_",
    "' OR '1'='1",
    "x" * 4096,
    "\N{PILE OF POO}",
    "\u202e",
    "cnv_*",
    "cnv_>",
    "",
)

NEEDS_MORE = {
    "/sandboxes/{id}",  # its id is the provider's, and exists only while the sandbox does
    "/files/{id}/{name}",  # another account's is asked for with its own link's words below
    "/deliveries/{id}",
    "/accounts/me/channels/{id}/installations",  # only of a channel that many workspaces install
    "/accounts/me/channels/{id}/installations/{installation}",
    "/accounts/me/persons/{id}/budget",  # persons begin with a message in a chat; test_preconditions.py asks
    "/accounts/me/workspaces/{id}/uploads/{upload}",  # test_workspace_uploads.py asks for both
    "/v1/conversations/{id}/items/{item}",  # its ids differ; test_openai_responses.py has both
    "/views/{link}/{path:(?s:.+)}",  # a link is signed, and leads to a sandbox that exposes a port
}
"""Read routes whose own account's answer is not asked for here."""


BODIES: dict[str, dict[str, Any]] = {
    "/accounts/me/channels/{id}/pairings": {"code": "ABCDEFGH"},
    "/accounts/me/persons/{id}/link": {"code": "ABCDEFGH"},
    "/accounts/me/workspaces/{id}/files:copy": {"path": "a", "to": "b"},
    "/accounts/me/workspaces/{id}/files:mkdir": {"path": "a"},
    "/accounts/me/workspaces/{id}/files:rename": {"path": "a", "to": "b"},
    "/accounts/me/workspaces/{id}/files:search": {"text": "a"},
    "/accounts/me/workspaces/{id}/uploads": {"path": "a", "size": 1},
    "/agents/{id}/turns": {"input": "!id"},
    "/agents/{id}/ui": {
        "id": "a",
        "messages": [{"role": "user", "parts": [{"type": "text", "text": "!id"}]}],
    },
    "/approvals/{id}": {"decision": "approve"},
    "/conversations/{id}": {"title": "taken"},
    "/conversations/{id}/handover": {"state": "human"},
    "/conversations/{id}/messages": {"text": "!id"},
    "/sandboxes/{id}/exec": {"command": "id"},
    "/sandboxes/{id}/views": {"port": 80},
    "/webhooks/{id}/replay": {"after": "2026-01-01T00:00:00Z"},
    "/accounts/me/schedules/{id}": {"text": "taken"},
    "/accounts/me/memories/{id}": {"text": "taken"},
    "/v1/conversations/{id}": {"metadata": {"a": "b"}},
    "/v1/conversations/{id}/items": {"items": [{"role": "user", "content": "!id"}]},
}
"""Bodies with which an id decides. Routes that are not listed take a name, or nothing."""


def _label(route: ApiRoute) -> str:
    return f"{route.method} {route.path}"


def _filled(route: ApiRoute, record: str) -> str:
    def fill(found: re.Match[str]) -> str:
        return FILE if found.group(1) in {"path", "name"} else quote(record, safe="")

    return PATH_PARAMETER.sub(fill, route.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTenants:
    """A gateway with two accounts: the first has one of everything, the other must see none of it."""

    process: GatewayProcess
    mine: ApiClient
    other_tenant: ApiClient
    ids: frozenset[str]
    conversation: str

    async def request(self, client: ApiClient, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Ask, and return the status and the whole answer as text."""
        answer = await client.call(method, path, body)
        return answer.status, json.dumps(answer.body) if not isinstance(answer.body, bytes) else repr(
            answer.body
        )


async def _until(client: ApiClient, path: str, *states: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while (answer := (await client.call("GET", path)).body).get("state") not in states:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    return dict(answer)


async def _records(mine: ApiClient) -> list[str]:
    """Make one record of every kind, with a file where files belong to it."""
    ids = []
    bodies: dict[str, dict[str, Any]] = {
        kind: {"name": CANARY, "config": {}} for kind in ("agents", "workspaces", "sandboxes", "skills")
    }
    bodies["webhooks"] = {"url": "http://127.0.0.1:9/canary", "name": CANARY}
    bodies["keys"] = {"name": CANARY, "scopes": ["read"]}
    settings = {"token": "123456:ABC-of-nobody", "base_url": "http://127.0.0.1:9/"}
    bodies["channels"] = {"name": CANARY, "kind": "telegram", "settings": settings}
    secret = {"host": "git.example.org", "kind": "header", "secret": CANARY, "agents": ["*"]}
    bodies["credentials"] = {"name": CANARY, **secret}
    for plural, body in bodies.items():
        made = await mine.call("POST", f"/accounts/me/{plural}", body)
        assert made.status == 201, (plural, made.body)
        ids.append(str(made.body["id"]))
        if plural in ("agents", "workspaces", "skills"):
            path = f"{mine.url}/accounts/me/{plural}/{ids[-1]}/files/{FILE}"
            key = {"Authorization": f"Bearer {mine.key}"}
            async with mine.session.put(path, data=CANARY.encode(), headers=key) as answer:
                assert answer.status == 204, await answer.text()
    return ids


async def _make_conversation(mine: ApiClient) -> tuple[str, list[str]]:
    """Say something that leads to an approval, to a job's turn and to a delivery; return all their ids."""
    ask = {"input": f"run: echo {CANARY}", "conversation": CANARY, "webhook": {"url": "http://127.0.0.1:9/x"}}
    taken = (await mine.call("POST", "/agents/default/turns", ask)).body
    await _until(mine, f"/status/{taken['turnId']}", "waiting")
    (approval,) = (await mine.call("GET", "/approvals")).body["items"]
    shell = {"name": "shell", "config": {"model": "builtin:shell"}}
    agent = (await mine.call("POST", "/accounts/me/agents", shell)).body["id"]
    durable = {"name": "durable", "config": {"provider": "host", "persistent": True}}
    assert (await mine.call("POST", "/accounts/me/sandboxes", durable)).status == 201
    files = {"name": "files", "workspaceId": CANARY, "sandbox": "durable"}
    writer = {"name": "writer", "config": {"model": "builtin:shell", "workspaces": [files]}}
    assert (await mine.call("POST", "/accounts/me/agents", writer)).status == 201
    written = (await mine.call("POST", "/agents/writer/turns", {"input": f"!echo {CANARY} > written"})).body
    await _until(mine, f"/status/{written['turnId']}", "completed")
    job_turn = (
        await mine.call("POST", f"/agents/{agent}/turns", {"input": f"!& sleep 60; echo {CANARY}"})
    ).body
    await _until(mine, f"/status/{job_turn['turnId']}", "completed")
    (job,) = (await mine.call("GET", "/jobs")).body["items"]
    ids = [
        taken["turnId"],
        taken["conversationId"],
        approval["id"],
        agent,
        job_turn["turnId"],
        job["resultId"],
        written["turnId"],
    ]
    ids += [job_turn["conversationId"], CANARY, "shell"]
    ids += [one["id"] for one in (await mine.call("GET", "/deliveries")).body["items"]]
    remind = {"conversation": CANARY, "text": CANARY, "kind": "reminder", "every": "P1D"}
    ids.append((await mine.call("POST", "/accounts/me/schedules", remind)).body["id"])
    trigger = {"conversation": CANARY, "template": CANARY}
    ids.append((await mine.call("POST", "/accounts/me/triggers", trigger)).body["id"])
    note = {"scope": "room", "subject": taken["conversationId"], "text": CANARY}
    ids.append((await mine.call("POST", "/accounts/me/memories", note)).body["id"])
    key = {"Authorization": f"Bearer {mine.key}"}
    upload = mine.session.post(f"{mine.url}/files?name={CANARY}", data=CANARY.encode(), headers=key)
    async with upload as uploaded:
        ids.append((await uploaded.json())["id"])
    ids += [one["id"] for one in (await mine.call("GET", "/sandboxes")).body["items"]]
    ids += [event["data"]["message"] for event in await _events(mine, taken) if "message" in event["data"]]
    return str(taken["conversationId"]), ids


async def _events(mine: ApiClient, taken: dict[str, Any]) -> list[dict[str, Any]]:
    path = f"/conversations/{taken['conversationId']}/events?after=0"
    return list((await mine.call("GET", path)).body["items"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenants(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TwoTenants]:
    """Run a gateway in which the first account has one of everything."""
    data = tmp_path_factory.mktemp("town") / "data"
    async with OpenAIServer(echo) as model, aiohttp.ClientSession() as session:
        env = {
            "DOVECOTE_ADMIN_KEY": ADMIN_KEY,
            "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
        }
        async with gateway(data, env=env) as process:
            mine = ApiClient(session=session, url=process.url, key=process.key)
            operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
            made = await operator.call("POST", "/accounts", {"name": "outsider"})
            outsider = ApiClient(session=session, url=process.url, key=made.body["key"])
            records = await _records(mine)
            conversation, ids = await _make_conversation(mine)
            yield TwoTenants(
                process=process,
                mine=mine,
                other_tenant=outsider,
                ids=frozenset([*records, *ids]),
                conversation=conversation,
            )


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _unrefused(
    town: TwoTenants, route: ApiRoute, records: Iterable[str], *, statuses: Container[int] = range(400, 500)
) -> list[str]:
    """Send each id as the other account; return every answer that is not a refusal."""
    named = {"name": "taken"} if "name" in getattr(route.request_model, "model_fields", {}) else {}
    body = None if route.method in ("GET", "DELETE") else BODIES.get(route.path, named)
    wrong = []
    for record in records:
        path = _filled(route, record)
        status, text = await town.request(town.other_tenant, route.method, path, body)
        if status not in statuses or CANARY in text.replace(record, ""):
            wrong.append(f"{path[:80]}: {status} {text[:200]}")
    return wrong


@pytest.mark.parametrize("route", ONE, ids=_label)
async def test_m14_no_account_reads_records_of_another(tenants: TwoTenants, route: ApiRoute) -> None:
    """Whatever id of the first account is in a path, the other account is refused and learns nothing."""
    assert await _unrefused(tenants, route, tenants.ids) == []


@pytest.mark.parametrize("route", CHANGES, ids=_label)
async def test_m14_no_account_changes_records_of_another(tenants: TwoTenants, route: ApiRoute) -> None:
    """The same holds for everything that changes something, with a body that its own account may send."""
    assert await _unrefused(tenants, route, tenants.ids, statuses={404}) == []


@pytest.mark.parametrize("route", ONE, ids=_label)
async def test_m14_ids_that_mean_more_elsewhere_mean_nothing(tenants: TwoTenants, route: ApiRoute) -> None:
    """Wildcards of subjects, SQL and paths, control characters and huge values are refused."""
    clients_own = {"", ".", ".."}  # an HTTP client resolves these itself
    assert await _unrefused(tenants, route, [one for one in ODD_IDS if one not in clients_own]) == []


@pytest.mark.parametrize("route", [one for one in ONE if one.path not in NEEDS_MORE], ids=_label)
async def test_m14_the_same_ids_open_their_own_accounts_things(tenants: TwoTenants, route: ApiRoute) -> None:
    """With its own key the first account is answered, or the refusals would prove nothing."""
    seen = {
        (await tenants.request(tenants.mine, "GET", _filled(route, record)))[0]
        for record in tenants.ids | {"default"}
    }
    assert 200 in seen or 204 in seen


@pytest.mark.parametrize("route", LISTS, ids=_label)
async def test_m14_no_list_shows_another_account(tenants: TwoTenants, route: ApiRoute) -> None:
    """The other account's lists contain no id and no text of the first account."""
    status, text = await tenants.request(tenants.other_tenant, "GET", route.path)
    assert status == 200, text
    assert not [record for record in tenants.ids - {"shell"} if f'"{record}"' in text]
    assert CANARY not in text


async def test_m14_the_audit_log_shows_only_ones_own_requests(tenants: TwoTenants) -> None:
    """The other account's audit log has its own requests, whatever ids they named."""
    await tenants.other_tenant.call("DELETE", f"/conversations/{tenants.conversation}")
    deeds = (await tenants.other_tenant.call("GET", AUDIT)).body["items"]
    keys = {one["id"] for one in (await tenants.other_tenant.call("GET", "/accounts/me/keys")).body["items"]}
    mine = {one["id"] for one in (await tenants.mine.call("GET", "/accounts/me/keys")).body["items"]}
    assert deeds
    assert not keys & mine
    assert not {deed["actor"] for deed in deeds} & mine


@pytest.mark.parametrize("named", [*ODD_IDS, "mine"])
async def test_m14_no_socket_follows_anothers_conversation(tenants: TwoTenants, named: str) -> None:
    """Subscribed by id, name or wildcard, the other account's socket gets nothing of the first account."""
    asked = tenants.conversation if named == "mine" else named
    headers = {"Authorization": f"Bearer {tenants.other_tenant.key}"}
    async with tenants.other_tenant.session.ws_connect(
        f"{tenants.process.url}/ws", headers=headers
    ) as socket:
        await socket.send_json({"type": "subscribe", "conversation": asked, "after": 0})
        await socket.send_json({"type": "ping"})
        received = ""
        while '"pong"' not in received:
            message = await socket.receive(timeout=20)
            if message.type is not aiohttp.WSMsgType.TEXT:
                break
            received += message.data
    assert CANARY not in received
    assert "turn.queued" not in received


CLAIMS: dict[str, Any] = {
    "account": "acc_1",
    "account_id": "acc_1",
    "tenant": "default",
    "scopes": ["read", "chat", "jobs", "admin"],
    "scope": "admin",
    "role": "admin",
    "is_admin": True,
    "isOwner": True,
    "senderIsOwner": True,
    "operator": True,
    "sub": "operator",
    "deviceToken": "x",
    "token": ADMIN_KEY,
    "key": ADMIN_KEY,
}


async def _reader(town: TwoTenants) -> ApiClient:
    made = await town.other_tenant.call("POST", "/accounts/me/keys", {"name": "reader", "scopes": ["read"]})
    key = made.body["key"] if made.status == 201 else ""
    if not key:
        listed = await town.other_tenant.call("GET", "/accounts/me/keys")
        (old,) = [one["id"] for one in listed.body["items"] if one["name"] == "reader"]
        await town.other_tenant.call("DELETE", f"/accounts/me/keys/{old}")
        return await _reader(town)
    return ApiClient(session=town.other_tenant.session, url=town.process.url, key=key)


async def test_m2_no_field_header_or_parameter_raises_a_keys_scope(tenants: TwoTenants) -> None:
    """A reading key is refused on every route that needs more, whatever the request claims."""
    reader = await _reader(tenants)
    said = {f"X-{name.replace('_', '-').title()}": str(value) for name, value in CLAIMS.items()}
    query = "&".join(f"{name}={quote(str(value))}" for name, value in CLAIMS.items())
    for route in ROUTES:
        more = isinstance(route.access, AdminAccess) or (
            isinstance(route.access, KeyAccess) and route.access.scope != "read"
        )
        if more:
            path = f"{_filled(route, 'default')}?{query}"
            answer = await reader.call(route.method, path, CLAIMS, **said)
            assert answer.status == 403, (_label(route), answer.status, answer.body)
    assert (await tenants.other_tenant.call("GET", "/accounts/me")).body["name"] == "outsider"


async def test_m2_no_field_leads_into_another_account(tenants: TwoTenants) -> None:
    """Bodies with fields of another account or role are refused as they are, and nothing is made."""
    first = (await tenants.mine.call("GET", "/accounts/me")).body["id"]
    for name, value in {**CLAIMS, "account": first, "account_id": first}.items():
        for path, body in (
            ("/agents/default/turns", {"input": "!echo claimed"}),
            ("/accounts/me/agents", {"name": "claimed", "config": {}}),
            ("/accounts/me/keys", {"name": "claimed"}),
        ):
            answer = await tenants.other_tenant.call("POST", path, {**body, name: value})
            allowed = path.endswith("/keys") and name == "scopes"
            assert answer.status == (201 if allowed else 422), (path, name, answer.body)
    shown = await tenants.other_tenant.call(
        "GET", "/accounts/me", None, X_Account=first, X_Forwarded_User=first
    )
    assert shown.body["name"] == "outsider"
    assert "claimed" not in (await tenants.request(tenants.mine, "GET", "/accounts/me/agents"))[1]


async def test_m2_a_token_field_is_not_a_key(tenants: TwoTenants) -> None:
    """Keys in the query, in cookies, in other headers or in the body are no keys: 401 on every route."""
    key, session = tenants.mine.key, tenants.mine.session
    for route in KEYED:
        path = f"{tenants.process.url}{_filled(route, 'default')}?key={key}&token={key}&access_token={key}"
        headers = {"X-Api-Key": key, "X-Token": key, "Proxy-Authorization": f"Bearer {key}"}
        async with session.request(route.method, path, headers=headers, json={"token": key}) as answer:
            assert (
                answer.status in (401, 404)
                if isinstance(route.access, SignedLinkAccess)
                else answer.status == 401
            )
