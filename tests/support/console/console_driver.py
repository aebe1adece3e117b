"""Drive a browser on a gateway's console, for the console's journeys."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from playwright.async_api import Browser, Dialog, Error, Page, async_playwright, expect

from gateway_process import GatewayProcess

_BROWSERS = (Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium"))
"""The first draws the same pages without the browser's own windows, in half the processor time."""

CHROMIUM = next((browser for browser in _BROWSERS if browser.exists()), _BROWSERS[-1])
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT_MS = 30_000
"""Milliseconds the browser waits for what must come; nothing is concluded from how long it took."""

ATTEMPTS = 5
"""How often a page is asked for while the machine's addresses change."""

PAUSE = 0.5
"""Seconds between them, in which the browser's own attempt can end."""

NETWORK_CHANGED = re.compile(r"ERR_NETWORK_CHANGED|is interrupted by another navigation")
"""What Playwright reports of a lost page, and of the next one if the browser shows an error or retries."""

LoadState = Literal["commit", "domcontentloaded", "load", "networkidle"]

VIOLATION_LISTENER = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


async def load(page: Page, address: str | None = None, *, wait_until: LoadState = "load") -> None:
    """
    Go to an address, or load the page again.

    Chromium ends requests that are just connecting when an address of the machine changes
    (``ERR_NETWORK_CHANGED``), as with every container that another test starts. It may load the page
    again by itself, but reports the first failure.
    """
    for remaining in reversed(range(ATTEMPTS)):
        try:
            if address is None:
                await page.reload(wait_until=wait_until)
            else:
                await page.goto(address, wait_until=wait_until)
        except Error as error:
            if not NETWORK_CHANGED.search(error.message) or remaining == 0:
                raise
            await asyncio.sleep(PAUSE)
        else:
            return


@dataclass(slots=True, kw_only=True)
class Console:
    """The page under test, with everything that it asked for and complained of."""

    page: Page
    addresses: list[str] = field(default_factory=list)
    console_errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def observe(self) -> None:
        """Keep every address that the page asks for and every error that it reports."""
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.on("websocket", lambda socket: self.addresses.append(socket.url))
        self.page.on("framenavigated", lambda frame: self.addresses.append(frame.url))
        self.page.on("pageerror", lambda error: self.console_errors.append(str(error)))

        async def answer(dialog: Dialog) -> None:
            """Agree to leave, and report other dialogs; a page does nothing while its dialog waits."""
            self.asked.append(dialog.type)
            if dialog.type != "beforeunload":
                self.console_errors.append(f"dialog: {dialog.message}")
            with suppress(Error):  # the page was closed before
                await dialog.accept()

        self.page.on("dialog", answer)

    async def enter(self, gateway: GatewayProcess, key: str | None = None) -> None:
        """Open the console and give it the key."""
        await load(self.page, f"{gateway.url}/")
        await self._load_again_while_offered()
        await self.submit_key(key or gateway.key)
        await expect(
            self.page.locator("[data-connection=Connected], [data-connection='Caught up']")
        ).to_be_visible()

    async def _load_again_while_offered(self) -> None:
        """Press the button of a page that gave up because the machine's addresses kept changing."""
        again = self.page.get_by_role("button", name="Load the console again")
        for _ in range(ATTEMPTS):
            await expect(self.page.get_by_label("API key").or_(again)).to_be_visible()
            if not await again.is_visible():
                return
            await again.click()

    async def submit_key(self, key: str) -> None:
        """Type a key and send it."""
        await self.page.get_by_label("API key").fill(key)
        await self.page.get_by_role("button", name="Enter").click()

    async def reload(self) -> list[str]:
        """Load the page again, agree to what the browser asks, and return the kinds of its questions."""
        self.asked.clear()
        await load(self.page)
        return list(self.asked)

    async def start_conversation(self, text: str) -> None:
        """Begin a new conversation with a message, and wait until the stream shows it."""
        menu = self.page.get_by_role("button", name="Menu")
        if await menu.is_visible():
            await menu.click()
        await self.page.get_by_role("link", name="New conversation").first.click()
        await expect(self.page.get_by_role("heading", name="New conversation")).to_be_visible()
        await self.send_message(text)
        await self.is_caught_up()

    async def send_message(self, text: str) -> None:
        """Type a message and press Enter."""
        field = self.page.get_by_label("Message", exact=True)
        await field.fill(text)
        await field.press("Enter")

    async def open_place(self, name: str) -> None:
        """Go to a place by the navigation, which is behind a button on a narrow page."""
        menu = self.page.get_by_role("button", name="Menu")
        if await menu.is_visible() and await menu.get_attribute("aria-expanded") == "false":
            await menu.click()
        await self.page.get_by_role("navigation", name="Views").get_by_role("link", name=name).first.click()

    async def is_caught_up(self) -> None:
        """Wait until the page reports that it has processed all events."""
        await expect(self.page.locator('[data-connection="Caught up"]')).to_be_visible()

    async def violations(self) -> list[str]:
        """Return what the browser refused because of the page's policy."""
        found: list[str] = await self.page.evaluate("window.violations")
        return found


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Run a browser with a profile of its own that is gone afterwards."""
    expect.set_options(timeout=TIMEOUT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(SWITCHES))
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_console(
    browser: Browser, *, width: int = 1280, height: int = 800, dark: bool = False
) -> AsyncIterator[Console]:
    """Open a page that shares nothing with any other."""
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    context.set_default_timeout(TIMEOUT_MS)
    await context.add_init_script(VIOLATION_LISTENER)
    console = Console(page=await context.new_page())
    console.observe()
    try:
        yield console
    finally:
        await context.close()
