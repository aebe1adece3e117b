"""Two tabs of the console: a change of one is not overwritten unseen by the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from console_driver import CHROMIUM, Console
from gateway_process import GatewayProcess
from gateway_process import gateway as running

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, which draws the console"),
    pytest.mark.timeout(180),
]

CHANGED = "changed since you read it"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayProcess]:
    """A gateway with the shell agent."""
    async with running(tmp_path_factory.mktemp("tabs") / "data") as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def console(console: Console, gateway: GatewayProcess) -> Console:
    """A fresh page with the key entered."""
    await console.enter(gateway)
    return console


async def call(gateway: GatewayProcess, method: str, path: str, body: Any = None) -> Any:
    """Call the gateway as the other tab does, and return the answer."""
    async with gateway.http() as session, session.request(method, path, json=body) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json()


async def test_a_note(gateway: GatewayProcess, console: Console) -> None:
    """The text that the other tab wrote is shown at the field; a second press replaces it."""
    page = console.page
    made = await call(gateway, "POST", "/accounts/me/memories", {"scope": "account", "text": "first"})
    path = f"/accounts/me/memories/{made['id']}"
    await console.open_place("Memory")
    note = page.locator(f'[data-memory="{made["id"]}"]')
    await note.get_by_role("button", name="Edit").click()
    await note.get_by_label("Note").fill("mine")
    await call(gateway, "PATCH", path, {"text": "theirs"})
    await note.get_by_role("button", name="Save").click()
    await expect(note).to_contain_text(CHANGED)
    assert (await call(gateway, "GET", path))["text"] == "theirs"
    await note.get_by_role("button", name="Replace theirs").click()
    await expect(note.get_by_role("button", name="Edit")).to_be_visible()
    assert (await call(gateway, "GET", path))["text"] == "mine"


async def test_a_title(gateway: GatewayProcess, console: Console) -> None:
    """A title that the other tab gave is shown before it is replaced."""
    page = console.page
    await console.start_conversation("!echo talk")
    await expect(page.get_by_role("button", name="Rename")).to_be_visible()
    (talk,) = (await call(gateway, "GET", "/conversations"))["items"]
    path = f"/conversations/{talk['id']}"
    await page.get_by_role("button", name="Rename").click()
    await page.get_by_label("Title").fill("Mine")
    await call(gateway, "PATCH", path, {"title": "Theirs"})
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert")).to_contain_text(CHANGED)
    assert (await call(gateway, "GET", path))["title"] == "Theirs"
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="Mine")).to_be_visible()
    assert (await call(gateway, "GET", path))["title"] == "Mine"


async def test_the_budget_of_each_person(gateway: GatewayProcess, console: Console) -> None:
    """Limits that the other tab set are not lost; a second press replaces them."""
    page = console.page
    await console.open_place("Usage")
    await page.get_by_text("Budget of each person").click()
    form = page.get_by_role("form", name="Budget of each person")
    await form.get_by_label("Tokens per day").fill("7")
    await call(gateway, "PUT", "/accounts/me/budget", {"person_month": {"requests": 3}})
    await form.get_by_role("button", name="Save").click()
    await expect(form).to_contain_text(CHANGED)
    budget = await call(gateway, "GET", "/accounts/me/budget")
    assert (budget["person_day"]["tokens"], budget["person_month"]["requests"]) == (0, 3)
    await form.get_by_role("button", name="Replace theirs").click()
    await expect(form.get_by_role("status")).to_have_text("Done.")
    budget = await call(gateway, "GET", "/accounts/me/budget")
    assert (budget["person_day"]["tokens"], budget["person_month"]["requests"]) == (7, 0)
