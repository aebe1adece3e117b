"""The console for special readers: with a key that may only read, and with the keyboard alone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from channels.telegram.simulator import simulate
from console_driver import CHROMIUM, load, open_console
from console_pictures import PLACES
from demo_content import Filled, fill
from demo_model import answer
from gateway_process import GatewayProcess
from gateway_process import gateway as running
from openai_server import OpenAIServer

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, which draws the console"),
    pytest.mark.timeout(240),
]

WITH_PAGES = {"agents", "channels", "deliveries", "jobs", "streams", "turns", "workspaces"}
"""The places whose rows have pages of their own."""

READING = re.compile(r"^(Copy|Show|Hide|Read on|Try again|Newest|How to check|Notify me|\d)")
"""The beginnings of what a reader may press: nothing of it changes anything."""

CONTROLS = """() => [...document.querySelectorAll("main button, main summary, main form, main textarea")]
  .filter((one) => one.checkVisibility() && !one.closest("[role=search]"))
  .map((one) => one.getAttribute("aria-label") || one.innerText.trim() || one.tagName)"""


@dataclass(frozen=True, kw_only=True)
class FilledGateway:
    """A gateway with something on every place, and keys for it by their scope."""

    process: GatewayProcess
    filled: Filled
    keys: dict[str, str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FilledGateway]:
    """A gateway with content; calls and questions wait for a person."""
    async with OpenAIServer(answer) as model, simulate() as platform:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
            "OPENAI_API_KEY": "loopback",
            "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
        }
        async with running(tmp_path_factory.mktemp("reader") / "data", env=env) as process:
            async with process.http() as session:
                filled, keys = await fill(session, platform), {}
                for name, scopes in {"read": ["read"], "chat": ["read", "chat"]}.items():
                    body = {"name": name, "scopes": scopes}
                    async with session.post("/accounts/me/keys", json=body) as response:
                        keys[name] = (await response.json())["key"]
            yield FilledGateway(process=process, filled=filled, keys=keys)


async def offered(page: Page, address: str) -> list[str]:
    """Open a place; return what it offers apart from reading."""
    await load(page, address)
    await expect(page.locator("main h1:visible").first).to_be_visible()
    await page.wait_for_load_state("networkidle")
    if address.endswith("/approvals"):
        await expect(page.locator("[data-approval]").first).to_be_visible()
    return [text for text in await page.evaluate(CONTROLS) if not READING.match(text)]


async def test_nothing_is_offered_that_a_reader_may_not(gateway: FilledGateway, browser: Browser) -> None:
    """On no place, in no conversation and on no page of a single thing."""
    url, found = gateway.process.url, {}
    async with open_console(browser, width=390, height=760) as view:
        await view.enter(gateway.process, gateway.keys["read"])
        page = view.page
        for name in PLACES:
            found[name] = await offered(page, f"{url}/#/{name}")
            if name in WITH_PAGES:
                single = page.locator(f"main ul a[href^='#/{name}/']").first
                await expect(single).to_be_visible()
                found[f"{name}/1"] = await offered(page, f"{url}/{await single.get_attribute('href')}")
        for conversation in (gateway.filled.report, gateway.filled.job, "new"):
            found[conversation] = await offered(page, f"{url}/#/inbox/{conversation}")
            await expect(page.get_by_text("This key lacks the scope")).to_be_visible()
        assert {place: texts for place, texts in found.items() if texts} == {}
        assert view.console_errors == []


async def test_who_may_chat_answers_and_does_not_delete(gateway: FilledGateway, browser: Browser) -> None:
    """The scope chat has the message field, titles and decisions; deletion needs admin."""
    url = gateway.process.url
    async with open_console(browser) as view:
        await view.enter(gateway.process, gateway.keys["chat"])
        conversation = await offered(view.page, f"{url}/#/inbox/{gateway.filled.report}")
        assert {"Take over", "Rename", "Send"} <= set(conversation)
        assert "Delete" not in conversation
        assert {"Approve", "Deny"} <= set(await offered(view.page, f"{url}/#/approvals"))
        assert view.console_errors == []


async def test_the_keyboard_alone_suffices(gateway: FilledGateway, browser: Browser) -> None:
    """The focus goes to what was opened, and back, and to the page if what had it is gone."""
    url = gateway.process.url
    async with open_console(browser) as view:
        page, keyboard = view.page, view.page.keyboard
        await view.enter(gateway.process)
        await load(page, f"{url}/#/inbox/{gateway.filled.job}")
        for name, field in {"Rename": "Title", "Edit and run again": "Your message"}.items():
            button = page.get_by_role("button", name=name).first
            await button.press("Enter")
            await expect(page.get_by_label(field)).to_be_focused()
            await keyboard.press("Escape")
            await expect(button).to_be_focused()
        await page.get_by_role("button", name="Take over").press("Enter")
        await expect(page.get_by_role("button", name="Give back")).to_be_focused()
        await page.get_by_role("button", name="Give back").press("Enter")
        await expect(page.get_by_role("button", name="Take over")).to_be_focused()
        await page.get_by_role("button", name="Delete").press("Enter")
        await expect(page.get_by_role("button", name="Delete for good")).to_be_focused()
        await keyboard.press("Enter")
        await expect(page.locator("main")).to_be_focused()
        await load(page, f"{url}/#/workspaces")
        await page.locator("main a[href^='#/workspaces/']").first.press("Enter")
        await expect(page.locator("main")).to_be_focused()
        await load(page, f"{url}/#/health")
        await expect(page.locator("main > section")).to_have_attribute("tabindex", "0")  # Chrome needs none
        await load(page, f"{url}/#/approvals")
        waiting = page.locator("[data-approval]")
        await expect(waiting.first).to_be_visible()
        before = await waiting.count()
        await page.get_by_role("button", name="Deny").first.press("Enter")
        await expect(waiting).to_have_count(before - 1)
        await expect(page.locator("main")).to_be_focused()
