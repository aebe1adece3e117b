"""The simulated Discord by itself: driven over HTTP by any program, honest in limits and windows."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from channels.discord import permissions, plugin
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from egress.guard import TRUSTED

CHAT = 4004


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


class ControlClient:
    """A program that has the simulator's address and nothing else."""

    def __init__(self, simulator: Simulator, http: aiohttp.ClientSession) -> None:
        self._url = simulator.url
        self._http = http
        self._token = simulator.token

    async def act(self, name: str, /, **fields: Any) -> Any:
        """Carry out an act; returns its result."""
        async with self._http.post(f"{self._url}/_control/{name}", json=fields) as answer:
            reported = await answer.json()
        return reported["result"] if answer.status == 200 else (answer.status, reported["error"])

    async def view(self, name: str) -> Any:
        """Look at something."""
        async with self._http.get(f"{self._url}/_control/{name}") as answer:
            return await answer.json()

    async def call(self, method: str, where: str, **fields: Any) -> tuple[int, Any, Any]:
        """Call the REST API as the bot; returns status, body and headers."""
        headers = {"Authorization": f"Bot {self._token}"}
        url = f"{self._url}/api/v10/{where}"
        async with self._http.request(method, url, json=fields or None, headers=headers) as answer:
            body = await answer.json() if answer.status != 204 else None
            return answer.status, body, answer.headers


@pytest.fixture
async def control(simulator: Simulator) -> AsyncIterator[ControlClient]:
    """Return an outside program."""
    async with aiohttp.ClientSession() as http:
        yield ControlClient(simulator, http)


async def test_an_outside_program_drives_it(control: ControlClient) -> None:
    """Messages, commands, presses, files, the bot's messages and faults are all available over HTTP."""
    assert (await control.act("server_channel", chat=5005))["id"] == "5005"
    number = await control.act("say", chat=5005, text="hello")
    file = await control.act(
        "send_file", chat=5005, content_base64=base64.b64encode(b"abc").decode(), name="a", media_type="b/c"
    )
    assert (await control.call("GET", f"channels/5005/messages/{file}"))[1]["attachments"][0]["size"] == 3
    row = {"type": 1, "components": [{"type": 2, "style": 2, "label": "No", "custom_id": "n"}]}
    _, sent, _ = await control.call("POST", "channels/5005/messages", content="May I?", components=[row])
    asked = await control.act("press", chat=5005, message=sent["id"], button="No")
    assert asked == (400, asked[1]), "the argument is called number"
    asked = await control.act("press", chat=5005, number=sent["id"], button="No")
    assert asked["reaction"] is None
    await control.act("fail", status=502, name="create")
    assert (await control.call("POST", "channels/5005/messages", content="x"))[0] == 502
    await control.act("deny", chat=5005, permissions=["Send Messages"])
    status, reported, _ = await control.call("POST", "channels/5005/messages", content="x")
    assert (status, reported["code"]) == (403, 50013)
    assert [post["text"] for post in await control.view("messages")] == ["May I?"]
    assert [name for name, _, _ in await control.view("calls")].count("create") == 3
    assert (await control.view("state"))["identified"] == 0
    assert (await control.view("settings"))["public_key"]
    assert (await control.act("unheard_of"))[0] == 404
    assert number.isdecimal()


async def test_a_nonce_counts_for_two_minutes(simulator: Simulator, control: ControlClient) -> None:
    """The same nonce is the same message within the window, for its channel, if it is enforced."""
    where, fields = f"channels/{CHAT}/messages", {"content": "x", "nonce": "n", "enforce_nonce": True}
    _, first, _ = await control.call("POST", where, **fields)
    _, again, _ = await control.call("POST", where, **fields)
    _, loose, _ = await control.call("POST", where, **{**fields, "enforce_nonce": False})
    await simulator.pass_time(121)
    _, later, _ = await control.call("POST", where, **fields)
    assert first["id"] == again["id"]
    assert len({first["id"], loose["id"], later["id"]}) == 3


async def test_buckets_refuse_what_is_too_much(simulator: Simulator, control: ControlClient) -> None:
    """A bucket belongs to a channel; its headers have the remainder, and a refusal has the wait."""
    await simulator.limit("create", 1, 20.0)
    where = f"channels/{CHAT}/messages"
    _, _, headers = await control.call("POST", where, content="x")
    assert (headers["X-RateLimit-Remaining"], headers["X-RateLimit-Limit"]) == ("0", "1")
    status, reported, headers = await control.call("POST", where, content="y")
    assert (status, reported["global"], headers["X-RateLimit-Scope"]) == (429, False, "user")
    assert 19 < reported["retry_after"] <= 20
    assert (await control.call("PATCH", f"{where}/1", content="z"))[0] == 404
    await simulator.limit("*", 0, 20.0)
    status, reported, headers = await control.call("GET", "users/@me")
    assert (status, reported["global"], headers["X-RateLimit-Scope"]) == (429, True, "global")


async def test_what_makes_no_sense_is_refused(control: ControlClient) -> None:
    """Too long, empty, unknown, wrong rows: refused with the documented codes."""
    where = f"channels/{CHAT}/messages"
    row = {"type": 1, "components": [{"type": 2, "label": "x", "custom_id": "same"}] * 2}
    bad: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", where, {"content": "x" * 2001}),
        ("POST", where, {"content": " "}),
        ("POST", where, {"content": "x", "nonce": "n" * 26}),
        ("POST", where, {"content": "x", "components": [row]}),
        ("POST", "channels/77/messages", {"content": "x"}),
        ("GET", f"{where}/77", {}),
        ("PUT", "applications/1/commands", {"name": "x"}),
    ]
    refusals = [(await control.call(method, path, **fields))[:2] for method, path, fields in bad]
    assert [(status, reported["code"]) for status, reported in refusals] == [
        (400, 50035),
        (400, 50006),
        (400, 50035),
        (400, 50035),
        (404, 10003),
        (404, 10008),
        (400, 50035),
    ]


async def test_an_endpoint_has_to_pass_discords_trial(simulator: Simulator, control: ControlClient) -> None:
    """An address that answers no ping, or accepts a forged one, is not set."""
    assert not await simulator.set_endpoint(f"{simulator.url}/_control/state")
    assert simulator.rest.endpoint is None
    assert await simulator.set_endpoint(None)


FLAWS: list[tuple[str, dict[str, Any], str]] = [
    ("application", {"public_key": "00" * 32}, "public_key ="),
    ("application", {"application_id": "5"}, "application_id ="),
]


@pytest.mark.parametrize(("subject", "others", "remedy"), FLAWS)
async def test_the_probe_finds_settings_that_do_not_fit(
    simulator: Simulator, subject: str, others: dict[str, Any], remedy: str
) -> None:
    """An id or key of another application is named, with the right one."""
    findings = await plugin.probe(plugin.settings(**simulator.settings(**others)), TRUSTED)
    (finding,) = [one for one in findings if not one.ok]
    assert (finding.subject, remedy in finding.remedy) == (subject, True)


async def test_the_probe_finds_what_is_missing_at_discord(simulator: Simulator) -> None:
    """Intent, permissions, endpoint and sessions: each with what to do."""
    simulator.rest.flags = 0
    simulator.rest.starts_left = 3
    simulator.rest.endpoint = "https://example.org/"
    simulator.world.guilds["900000000000000001"]["permissions"] = str(permissions.BITS["View Channels"])
    findings = await plugin.probe(plugin.settings(**simulator.settings(reactions=True)), TRUSTED)
    wrong = {one.subject: f"{one.detail} {one.remedy}" for one in findings if not one.ok}
    assert set(wrong) == {"message content", "permissions", "gateway", "sessions"}
    assert "Message Content Intent" in wrong["message content"]
    assert "Engine Room: Add Reactions, Send Messages" in wrong["permissions"]
    assert f"permissions={permissions.WANTED}" in wrong["permissions"]
    assert "Clear the Interactions Endpoint URL" in wrong["gateway"]
    assert "3 of 1000" in wrong["sessions"]


async def test_the_probe_of_an_interactions_bot(simulator: Simulator) -> None:
    """Without an endpoint nothing would ever come in."""
    settings = simulator.settings(mode="interactions", public_key=simulator.public_key)
    simulator.rest.flags = 0
    (finding,) = [one for one in await plugin.probe(plugin.settings(**settings), TRUSTED) if not one.ok]
    assert (finding.subject, "Interactions Endpoint URL" in finding.remedy) == ("interactions", True)
