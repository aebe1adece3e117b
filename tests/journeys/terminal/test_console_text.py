"""A conversation of the console: on paper, for screen readers, and in letters that run from the right."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from axe_checks import find_barriers
from console_driver import CHROMIUM, Console
from gateway_process import GatewayProcess
from gateway_process import gateway as running

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, which draws the console"),
    pytest.mark.timeout(180),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayProcess]:
    """A gateway with the shell agent."""
    async with running(tmp_path_factory.mktemp("paper") / "data") as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def console(console: Console, gateway: GatewayProcess) -> Console:
    """A page that shows a conversation of two commands, longer than its window."""
    await console.enter(gateway)
    await console.start_conversation("!seq 1 40")
    await console.send_message("!seq 41 80")
    commands = console.page.locator('[data-kind="tool"]').filter(has_text="exit code 0")
    await expect(commands).to_have_count(2)
    await console.is_caught_up()
    return console


async def test_a_printed_conversation_is_whole(console: Console) -> None:
    """Paper has all messages, and neither navigation nor buttons; only the part on the screen was printed."""
    page = console.page
    await page.emulate_media(media="print")
    await expect(page.get_by_role("navigation", name="Views")).to_be_hidden()
    await expect(page.get_by_role("button")).to_have_count(0)
    cut = await page.evaluate(
        """() => [...document.querySelectorAll("main :not(.unseen)")].filter((one) =>
            getComputedStyle(one).overflowY !== "visible" && one.scrollHeight > one.clientHeight + 1
            && one.clientHeight > 0).map((one) => one.className)"""
    )
    assert cut == []
    assert await page.evaluate("document.documentElement.scrollHeight > innerHeight")


async def test_commands_of_a_conversation_are_no_landmarks(console: Console) -> None:
    """Two landmarks must not have one name, and the commands of a conversation have."""
    assert await find_barriers(console.page) == []


@pytest.mark.parametrize("text", ["שלום, מה שלומך?", "مرحبا، كيف حالك!"], ids=["Hebrew", "Arabic"])
async def test_text_is_read_in_the_direction_of_its_letters(
    gateway: GatewayProcess, console: Console, text: str
) -> None:
    """The first letter is at the right edge, and the mark at the end is on the left."""
    await console.send_message(text)
    await console.is_caught_up()
    paragraph = console.page.locator('.mine[data-kind="message"] .text p').filter(has_text=text)
    await expect(paragraph).to_be_visible()
    first, last, edge = await paragraph.evaluate(
        """(one) => {
          const node = one.firstChild, range = document.createRange();
          const right = (at) => {
            range.setStart(node, at);
            range.setEnd(node, at + 1);
            return range.getBoundingClientRect().right;
          };
          return [right(0), right(node.length - 1), one.getBoundingClientRect().right];
        }"""
    )
    assert last < first
    assert edge - first < 2  # pixels
