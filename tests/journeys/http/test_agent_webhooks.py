"""The webhook of an agent over HTTP: its events, and when a disabled one is enabled again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from api_server import ApiServer, open_api_server
from delivery.database.clock import utc_now
from delivery.webhooks import endpoints
from delivery.webhooks.endpoints import Endpoint
from gateway.config.setting_types import AgentSettings
from gateway.records.bootstrap import ensure_defaults
from gateway.records.declared import DeclaredRecords

URL = "https://example.org/hook"
SECRET = "a secret of the receiver"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """Serve the API without turns."""
    async with open_api_server(tmp_path) as running:
        yield running


async def endpoint_of(api: ApiServer, agent: str) -> Endpoint:
    """Return the endpoint of an agent."""
    account = (await api.mine.call("GET", "/accounts/me")).body["id"]
    async with api.context.database.read() as connection:
        found = await endpoints.get_by_origin(connection, account, f"agent:{agent}")
    assert found is not None
    return found


async def disable(api: ApiServer, endpoint: Endpoint) -> None:
    """Disable an endpoint as a 410 does."""
    changed = replace(endpoint, disabled_at=utc_now(), disabled_why="410")
    async with api.context.database.begin() as connection:
        await endpoints.update_endpoint(connection, changed, before=endpoint)


async def create_agent(api: ApiServer, **hook: object) -> str:
    """Create an agent with a webhook; return its id."""
    body = {"name": "a", "config": {"hooks": {"webhook": {"url": URL, **hook}}}}
    made = await api.mine.call("POST", "/accounts/me/agents", body)
    assert made.status == 201, made.body
    return str(made.body["id"])


@pytest.mark.parametrize("events", [["delivery.*"], ["agent.*", "delivery.dead"], ["tool.delta"]])
async def test_events_that_are_never_sent_are_refused(api: ApiServer, events: list[str]) -> None:
    """An agent's webhook that names them is 422, when it is created and when it is changed."""
    config = {"hooks": {"webhook": {"url": URL, "events": events}}}
    made = await api.mine.call("POST", "/accounts/me/agents", {"name": "b", "config": config})
    await create_agent(api)
    changed = await api.mine.call("PATCH", "/accounts/me/agents/a", {"config": config})
    for answer in (made, changed):
        assert answer.status == 422, answer.body
        pointer = f"/config/hooks/webhook/events/{len(events) - 1}"
        assert [one["pointer"] for one in answer.body["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("patch", "is_enabled"),
    [
        ({"instructions": "be brief"}, False),
        ({"hooks": {"http": {}}}, False),
        ({"hooks": {"webhook": {"url": URL}}}, True),
        ({"hooks": {"webhook": {"events": ["job.*"]}}}, True),
        ({"hooks": {"webhook": {"secret": "another secret of it"}}}, True),
    ],
)
async def test_a_change_of_other_fields_leaves_a_webhook_disabled(
    api: ApiServer, patch: dict[str, object], is_enabled: bool
) -> None:
    """A PATCH enables a disabled webhook of an agent only if it names the webhook."""
    agent = await create_agent(api, secret=SECRET)
    await disable(api, await endpoint_of(api, agent))
    answer = await api.mine.call("PATCH", "/accounts/me/agents/a", {"config": patch})
    assert answer.status == 200, answer.body
    assert ((await endpoint_of(api, agent)).disabled_at is None) == is_enabled


async def test_a_start_leaves_a_declared_webhook_disabled_until_it_changes(
    api: ApiServer, tmp_path: Path
) -> None:
    """An unchanged table of the settings file enables no webhook; another secret does."""

    async def apply(secret: str) -> None:
        hook = {"hooks": {"webhook": {"url": URL, "secret": secret}}}
        async with api.context.database.begin() as connection:
            await ensure_defaults(
                connection,
                api.context.records,
                data=tmp_path,
                agent=AgentSettings(),
                declared=DeclaredRecords(agents={"d": hook}),
            )

    await apply(SECRET)
    agent = (await api.mine.call("GET", "/accounts/me/agents/d")).body["id"]
    await disable(api, await endpoint_of(api, agent))
    await apply(SECRET)
    assert (await endpoint_of(api, agent)).disabled_at is not None
    await apply("another secret of the receiver")
    assert (await endpoint_of(api, agent)).disabled_at is None


async def test_the_webhook_of_an_agent_is_enabled_by_its_id(api: ApiServer) -> None:
    """Its id shows and enables it; the URL, the events and the end of it are the agent's."""
    endpoint = await endpoint_of(api, await create_agent(api))
    await disable(api, endpoint)
    path = f"/accounts/me/webhooks/{endpoint.id}"
    assert (await api.mine.call("GET", path)).body["disabled_why"] == "410"
    assert (await api.other.call("GET", path)).status == 404
    assert (await api.mine.call("PATCH", path, {"enabled": True})).body["enabled"] is True
    for method, body in (("PATCH", {"url": f"{URL}/2"}), ("DELETE", None)):
        refused = await api.mine.call(method, path, body)
        assert refused.status == 409
        assert "hooks.webhook of the agent" in refused.body["detail"]


async def test_a_turn_that_names_a_disabled_webhook_is_refused(api: ApiServer) -> None:
    """The turn is 409 and says why, because its result would go nowhere."""
    await api.mine.call("POST", "/accounts/me/webhooks", {"url": URL, "name": "h"})
    await api.mine.call("PATCH", "/accounts/me/webhooks/h", {"enabled": False})
    body = {"input": "hi", "webhook": {"id": "h"}}
    refused = await api.mine.call("POST", "/agents/default/turns", body)
    assert refused.status == 409, refused.body
    assert "disabled" in refused.body["detail"]
