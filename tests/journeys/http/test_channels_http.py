"""Channels and webhooks over HTTP: active at once, their secrets shown once or never."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from api_server import ApiServer, open_api_server
from channels.errors import Unreachable
from channels.port import (
    ChannelInstallation,
    ChannelInstallations,
    PageRequest,
    PageResponse,
    WebhookRequest,
    WebhookResponse,
)
from gateway.config.setting_types import AgentSettings
from gateway.records import webhooks
from gateway.records.bootstrap import ensure_defaults
from gateway.records.declared import DeclaredRecords
from gateway.store.accounts.records import Record


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A running face."""
    async with open_api_server(tmp_path) as running:
        yield running


TELEGRAM = {"name": "tg", "kind": "telegram", "settings": {"token": f"123456:{'A' * 35}"}}


async def test_an_agents_webhook_gets_a_secret_that_is_returned_once(api: ApiServer) -> None:
    """The secret made for an agent's hook is in the first answer and in no other."""
    hook = {"hooks": {"webhook": {"url": "https://example.org/hook?x=1"}}}
    first = await api.mine.call("POST", "/accounts/me/agents", {"name": "a", "config": hook})
    assert first.body["webhook_secret"].startswith("whsec_")
    secret = first.body["webhook_secret"].removeprefix("whsec_")
    again = await api.mine.call("PATCH", "/accounts/me/agents/a", {"config": {"instructions": "be brief"}})
    shown = await api.mine.call("GET", "/accounts/me/agents/a")
    assert again.body["webhook_secret"] is None
    assert secret not in str(again.body) + str(shown.body)
    assert shown.body["config"]["hooks"]["webhook"]["events"] == ["agent.finished"]
    assert (await api.mine.call("GET", "/accounts/me/webhooks")).body["items"] == []


async def test_a_webhooks_secret_is_returned_once_and_rotates_with_overlap(api: ApiServer) -> None:
    """Creating and rotating return a secret; afterwards both old and new sign."""
    first = await api.mine.call("POST", "/accounts/me/webhooks", {"url": "https://example.org/", "name": "h"})
    second = await api.mine.call("POST", "/webhooks/h/rotate")
    assert (first.status, second.status) == (201, 200)
    assert first.body["secret"] != second.body["secret"]
    assert "secret" not in (await api.mine.call("GET", "/accounts/me/webhooks/h")).body
    account = (await api.mine.call("GET", "/accounts/me")).body["id"]
    async with api.context.database.read() as connection:
        endpoint = await webhooks.get(connection, account, "h")
    live = webhooks.active_secrets(api.context.records.vault, endpoint)
    assert live == (second.body["secret"], first.body["secret"])


@pytest.mark.parametrize(
    "body",
    [
        {"url": "ftp://example.org/"},
        {"url": "https://user:pw@example.org/"},
        {"url": "https://example.org/\r\nX: y"},
        {"url": "not a url"},
        {"url": "https://example.org/", "events": ["agent.exploded"]},
        {"url": "https://example.org/", "events": []},
        {"url": "https://example.org/", "events": ["delivery.*"]},
        {"url": "https://example.org/", "events": ["agent.*", "delivery.dead"]},
        {"url": "https://example.org/", "events": ["tool.delta"]},
        {"url": "https://example.org/", "secret": "short"},
        {"url": "https://example.org/", "conversation": "cnv_of_nobody"},
        {"events": ["*"]},
    ],
)
async def test_a_wrong_webhook_is_refused(api: ApiServer, body: dict[str, object]) -> None:
    """URLs that are none, events that do not exist and weak secrets are 422."""
    answer = await api.mine.call("POST", "/accounts/me/webhooks", body)
    assert answer.status == 422, answer.body
    assert answer.body["errors"]


async def test_a_channel_goes_live_changes_and_closes(api: ApiServer) -> None:
    """Creating, changing and deleting a channel take effect at once; its token is never shown."""
    made_channel = await api.mine.call("POST", "/accounts/me/channels", TELEGRAM)
    assert made_channel.status == 201, made_channel.body
    channel = made_channel.body["id"]
    assert made_channel.body["settings"]["token"] == "***"
    shown = await api.mine.call("GET", "/accounts/me/channels/tg")
    assert "AAAA" not in str(shown.body)
    default = (await api.mine.call("GET", "/accounts/me/agents/default")).body["id"]
    assert shown.body["agent"] == default
    patch = {"settings": {"allow": ["*"], "token": "***"}}
    changed = await api.mine.call("PATCH", "/accounts/me/channels/tg", patch)
    assert (changed.status, changed.body["settings"]["allow"]) == (200, ["*"])
    assert (await api.mine.call("DELETE", "/accounts/me/agents/default")).status == 409
    assert (await api.mine.call("DELETE", f"/accounts/me/channels/{channel}")).status == 204
    assert [record for _account, record in api.changed] == [channel] * 3


async def test_a_place_of_an_agent_keeps_its_channel(api: ApiServer) -> None:
    """Its name becomes the id, so that another channel of this name is no place; it need not exist yet."""
    channel = (await api.mine.call("POST", "/accounts/me/channels", TELEGRAM)).body["id"]
    place = {"ops": {"channel": "tg", "room": "1"}, "later": {"channel": "new", "room": "1"}}
    patch = {"config": {"sends": {"to": place}}}
    shown = await api.mine.call("PATCH", "/accounts/me/agents/default", patch)
    places = shown.body["config"]["sends"]["to"]
    assert (places["ops"]["channel"], places["later"]["channel"]) == (channel, "new")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"kind": "pigeon"}, "/kind"),
        ({"agent": "anonymous"}, "/agent"),
        ({"settings": {}}, "/settings/token"),
        ({"settings": {"token": ""}}, "/settings/token"),
        ({"settings": {"token": "   "}}, "/settings/token"),
        ({"settings": {"token": "t", "nonsense": 1}}, "/settings/nonsense"),
        ({"surplus": 1}, "/surplus"),
    ],
)
async def test_a_wrong_channel_says_where(api: ApiServer, change: dict[str, object], pointer: str) -> None:
    """Unknown platforms, agents and settings, and blank tokens, are 422 and open nothing."""
    answer = await api.mine.call("POST", "/accounts/me/channels", TELEGRAM | change)
    assert answer.status == 422
    assert pointer in [fault["pointer"] for fault in answer.body["errors"]]
    assert api.changed == []


async def test_a_field_that_a_patch_cannot_change_is_named_as_such(api: ApiServer) -> None:
    """The platform of a channel is a field that every response has, so PATCH does not call it unknown."""
    made = await api.mine.call("POST", "/accounts/me/channels", TELEGRAM)
    assert made.status == 201
    change = {"kind": "discord", "surplus": 1}
    answer = await api.mine.call("PATCH", f"/accounts/me/channels/{made.body['id']}", change)
    assert answer.status == 422
    assert {one["pointer"]: one["detail"] for one in answer.body["errors"]} == {
        "/kind": "cannot be changed",
        "/surplus": "there is no such key; the keys are agent, name, paused, settings",
    }


async def test_a_channel_of_the_configuration_file_is_changed_there(api: ApiServer, tmp_path: Path) -> None:
    """It is listed as managed, refuses changes over HTTP, and is gone when the file no longer has it."""

    async def start(**channels: dict[str, object]) -> None:
        async with api.context.database.begin() as connection:
            await ensure_defaults(
                connection,
                api.context.records,
                data=tmp_path,
                agent=AgentSettings(),
                declared=DeclaredRecords(channels=channels),
            )

    await start(telegram={"token": f"1:{'A' * 35}"})
    (listed,) = (await api.mine.call("GET", "/accounts/me/channels")).body["items"]
    assert (listed["name"], listed["managed"]) == ("telegram", True)
    path = f"/accounts/me/channels/{listed['id']}"
    assert (await api.mine.call("PATCH", path, {"settings": {"allow": ["*"]}})).status == 409
    assert (await api.mine.call("DELETE", path)).status == 409
    await start(telegram={"token": f"2:{'B' * 35}"})
    (again,) = (await api.mine.call("GET", "/accounts/me/channels")).body["items"]
    assert again["id"] == listed["id"]
    await start()
    assert (await api.mine.call("GET", "/accounts/me/channels")).body["items"] == []


NOW = datetime(2026, 1, 2, tzinfo=UTC)
PAGES = {
    "/channels/chn_1/install": "install",
    "/channels/chn_1/oauth": "oauth",
    "/slack/install": "install",
    "/slack/oauth_redirect": "oauth",
}


class WebhookStub:
    """Inboxes of one channel that answers every post with the status it is sent."""

    async def receive(self, channel: str, request: WebhookRequest) -> WebhookResponse | None:
        """Answer with the status in the body."""
        return WebhookResponse(status=int(request.body)) if channel == "chn_1" else None


class InstallationsStub(ChannelInstallations):
    """Three workspaces; the platform cannot be reached to uninstall the last one."""

    def __init__(self) -> None:
        self.names = {"T1": "one", "T2": "two", "T3": "three"}

    async def show_page(self, request: PageRequest) -> PageResponse:
        """Return a page that says what was asked for."""
        headers = {"Content-Type": "text/html; charset=utf-8", "Set-Cookie": "state=1; HttpOnly"}
        return PageResponse(status=200, body=f"<p>{request.page} {request.query}</p>", headers=headers)

    async def list(self, *, after: str = "", limit: int = 200) -> list[ChannelInstallation]:
        """Return the workspaces after an id."""
        found = [ChannelInstallation(id=one, name=name, installed_at=NOW) for one, name in self.names.items()]
        return [one for one in found if one.id > after][:limit]

    async def get(self, installation: str) -> ChannelInstallation | None:
        """Return one workspace."""
        return next((one for one in await self.list() if one.id == installation), None)

    async def uninstall(self, installation: str) -> bool:
        """Forget a workspace."""
        if installation == "T3":
            raise Unreachable("apps.uninstall: the connection failed")
        return self.names.pop(installation, None) is not None


class InstallableChannels(WebhookStub):
    """Slack channels of which those with installations can be installed."""

    def __init__(self, **installations: ChannelInstallations) -> None:
        self.of = installations

    def installations(self, channel: str) -> ChannelInstallations | None:
        """Return the installations of a channel."""
        return self.of.get(channel)

    @asynccontextmanager
    async def open_installations(self, record: Record) -> AsyncIterator[ChannelInstallations | None]:
        """Yield the installations of a channel."""
        yield self.of.get(record.id)

    def list_installable(self, kind: str) -> list[str]:
        """Return the channels that can be installed."""
        return list(self.of) if kind == "slack" else []


@pytest.mark.parametrize(("path", "status"), [("chn_1", 400), ("chn_1", 401), ("chn_1", 503), ("chn_2", 404)])
async def test_a_refused_post_is_explained(tmp_path: Path, path: str, status: int) -> None:
    """What an adapter refuses is an ordinary problem; what it accepts gets the adapter's answer."""
    async with open_api_server(tmp_path, channels=WebhookStub()) as face:
        answer = await face.anonymous.call("POST", f"/channels/{path}/inbound", status)
        assert (answer.status, answer.body["status"], bool(answer.body["detail"])) == (status, status, True)
        assert answer.headers["Content-Type"].startswith("application/problem+json")
        assert (await face.anonymous.call("POST", "/channels/chn_1/inbound", 202)).status == 202


async def test_a_channels_page_is_shown_to_a_person(tmp_path: Path) -> None:
    """It needs no key, keeps its own headers, and is absent where the channel's app cannot be installed."""
    channels = InstallableChannels(chn_1=InstallationsStub())
    async with open_api_server(tmp_path, channels=channels) as face, aiohttp.ClientSession() as browser:
        for path, page in PAGES.items():
            answer = await browser.get(f"{face.url}{path}?team=T1")
            assert (answer.status, await answer.text()) == (200, f"<p>{page} team=T1</p>")
            assert (answer.content_type, answer.headers["Set-Cookie"]) == ("text/html", "state=1; HttpOnly")
        for path in ("channels/chn_1/other", "channels/chn_2/install", "telegram/install", "slack/oauth"):
            assert (await browser.get(f"{face.url}/{path}")).status == 404
        channels.of["chn_2"] = InstallationsStub()
        for path in ("/slack/install", "/slack/oauth_redirect"):
            refused = await face.anonymous.call("GET", path)
            assert (refused.status, "/channels/CHANNEL-ID/" in refused.body["detail"]) == (409, True)
            assert "chn_" not in str(refused.body)


async def test_workspaces_are_listed_and_uninstalled(tmp_path: Path) -> None:
    """They are paged; what the platform does not uninstall stays, and other accounts' channels are absent."""
    channels = InstallableChannels()
    async with open_api_server(tmp_path, channels=channels) as face:
        channel = (await face.mine.call("POST", "/accounts/me/channels", TELEGRAM)).body["id"]
        path = f"/accounts/me/channels/{channel}/installations"
        refused = await face.mine.call("GET", path)
        assert (refused.status, "serves one workspace" in refused.body["detail"]) == (409, True)
        channels.of[channel] = InstallationsStub()
        first = (await face.mine.call("GET", f"{path}?limit=2")).body
        rest = (await face.mine.call("GET", f"{path}?limit=2&cursor={first['next']}")).body
        assert [one["id"] for one in first["items"] + rest["items"]] == ["T1", "T2", "T3"]
        assert rest["next"] is None
        one = {"id": "T1", "name": "one", "installed_at": "2026-01-02T00:00:00Z", "is_organisation": False}
        assert (await face.mine.call("GET", f"{path}/T1")).body == one
        statuses = [(await face.mine.call("DELETE", f"{path}/{name}")).status for name in ("T1", "T1", "T3")]
        assert statuses == [204, 404, 502]
        assert (await face.mine.call("GET", f"{path}/T1")).status == 404
        assert (await face.mine.call("GET", f"{path}/T3")).status == 200
        assert (await face.anonymous.call("GET", path)).status == 401


async def test_two_channels_with_one_app_level_token_are_refused(api: ApiServer) -> None:
    """Slack gives each event to one of an app's sockets: a second channel would take them from the first."""

    def slack(name: str, **settings: str) -> dict[str, object]:
        given = {"bot_token": f"xoxb-{name}", "app_token": "xapp-1", **settings}
        return {"name": name, "kind": "slack", "settings": given}

    path = "/accounts/me/channels"
    assert (await api.mine.call("POST", path, slack("one"))).status == 201
    second = await api.mine.call("POST", path, slack("two"))
    assert (second.status, "xapp-1" in str(second.body)) == (422, False)
    assert "another channel is connected with these credentials" in str(second.body)
    assert (await api.mine.call("POST", path, slack("two", app_token="xapp-2"))).status == 201
    patch = {"settings": {"app_token": "xapp-1"}}
    assert (await api.mine.call("PATCH", f"{path}/two", patch)).status == 422
    assert (await api.mine.call("PATCH", f"{path}/one", {"settings": {"allow": ["*"]}})).status == 200
