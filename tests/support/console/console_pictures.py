"""Take a picture of every place of the console: light, dark, and on a phone.

    PYTHONPATH=.:tests/support python tests/support/console/console_pictures.py docs/images

It starts a gateway with a scripted model in a temporary directory, fills it, and replaces the pictures.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from playwright.async_api import Browser, expect

from channels.telegram.simulator import simulate
from console_driver import Console, load, open_browser, open_console
from demo_content import Filled, fill
from demo_model import answer
from gateway_process import GatewayProcess
from gateway_process import gateway as running
from openai_server import OpenAIServer

PLACES = (
    *("home", "inbox", "approvals", "jobs", "turns", "deliveries", "streams", "health", "channels"),
    *("agents", "sandboxes", "workspaces", "schedules", "memory", "webhooks", "keys", "usage", "audit"),
)
LOOKS = {"light": (1120, 720, False), "dark": (1120, 720, True), "phone": (390, 760, False)}
QUALITY = 28


async def take_all() -> dict[str, bytes]:
    """Return the pictures by their file names."""
    pictures: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with OpenAIServer(answer) as model, simulate() as platform, open_browser() as browser:
            env = {
                "DOVECOTE_AGENT__MODEL": "openai:loopback",
                "DOVECOTE_AGENT__BASE_URL": model.base_url,
                "OPENAI_API_KEY": "loopback",
                "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
            }
            async with running(Path(folder) / "data", env=env) as gateway:
                async with gateway.http() as session:
                    filled = await fill(session, platform)
                for look in LOOKS:
                    async for name, picture in _take_look(browser, gateway, look, filled):
                        pictures[f"console-{name}-{look}.webp"] = picture
    return pictures


async def _take_look(
    browser: Browser, gateway: GatewayProcess, look: str, filled: Filled
) -> AsyncIterator[tuple[str, bytes]]:
    width, height, dark = LOOKS[look]
    async with open_console(browser, width=width, height=height, dark=dark) as view:
        await load(view.page, gateway.url)
        await expect(view.page.get_by_label("API key")).to_be_visible()
        yield "key", await _picture(view)
        await view.enter(gateway)
        for name in PLACES:
            await load(view.page, f"{gateway.url}/#/{name}")
            await expect(view.page.locator("main h1").first).to_be_visible()
            await view.page.wait_for_load_state("networkidle")
            yield name, await _picture(view)
        for name in ("channels", "agents"):
            await load(view.page, f"{gateway.url}/#/{name}")
            await view.page.locator(f"main ul a[href^='#/{name}/']").first.click()
            await expect(view.page.get_by_role("link", name=f"← All {name}")).to_be_visible()
            await view.page.wait_for_load_state("networkidle")
            yield name.removesuffix("s"), await _picture(view)
        for name, talk in (("chat", filled.chat), ("job", filled.job), ("conversation", filled.report)):
            await load(view.page, f"{gateway.url}/#/inbox/{talk}")
            await view.is_caught_up()
            yield name, await _picture(view)
        await view.page.locator('[data-kind="turn"]').last.get_by_role("link", name="Trace").click()
        await expect(view.page.get_by_role("heading", name="Trace")).to_be_visible()
        yield "trace", await _picture(view)


async def _picture(view: Console) -> bytes:
    """Return what the window shows, in the format that is smallest."""
    await view.page.wait_for_timeout(400)  # icons and charts have been drawn
    session = await view.page.context.new_cdp_session(view.page)
    taken = await session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    await session.detach()
    return base64.b64decode(taken["data"])


def main() -> None:
    """Take the pictures and print how large they are."""
    parser = argparse.ArgumentParser(description="Take a picture of every place of the console.")
    parser.add_argument("target", type=Path)
    target: Path = parser.parse_args().target
    pictures = asyncio.run(take_all())
    target.mkdir(parents=True, exist_ok=True)
    for former in target.glob("console-*.webp"):
        former.unlink()
    for name, picture in pictures.items():
        (target / name).write_bytes(picture)
    print(f"{sum(map(len, pictures.values())) / 1e6:.2f} MB")  # noqa: T201 - a script says what it did


if __name__ == "__main__":
    main()
