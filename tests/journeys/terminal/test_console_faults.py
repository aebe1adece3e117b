"""The console when requests fail and when others change the same record: one gateway, one browser."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Route, expect

from console_driver import CHROMIUM, Console, load
from console_setup import add_agent, add_key, change, fault_of, records
from demo_model import answer
from gateway_process import GatewayProcess
from gateway_process import gateway as running
from openai_server import OpenAIServer

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, which draws the console"),
    pytest.mark.timeout(180),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayProcess]:
    """A gateway whose agent repeats its input."""
    async with OpenAIServer(answer) as model:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
            "OPENAI_API_KEY": "loopback",
        }
        async with running(tmp_path_factory.mktemp("faults") / "data", env=env) as process:
            yield process


async def lose(console: Console, path: str, times: int) -> Counter[str]:
    """End the first requests for a file as a change of the network does; returns how many were ended."""
    lost = Counter[str]()

    async def end(route: Route) -> None:
        if lost[path] == times:
            await route.continue_()
            return
        lost[path] += 1
        await route.abort("internetdisconnected")

    await console.page.route(lambda url: url.split("?")[0].endswith(path), end)
    return lost


@pytest.mark.parametrize("path", ["/app.js", "/core/live.js", "/styles/base.css"])
async def test_a_page_that_lost_a_file_is_loaded_again(
    gateway: GatewayProcess, console: Console, path: str
) -> None:
    """The first page appears, with its styles, although a file of it was lost twice."""
    lost = await lose(console, path, times=2)
    async with console.page.expect_response(lambda response: response.url.endswith(path)):
        await load(console.page, gateway.url, wait_until="commit")
    await console.submit_key(gateway.key)
    await expect(console.page.get_by_role("heading", name="Home")).to_be_visible()
    assert lost[path] == 2


@pytest.mark.parametrize(("times", "loads"), [(1, 2), (4, 4)])
async def test_an_unstyled_page_is_not_shown_while_it_can_be_loaded_again(
    gateway: GatewayProcess, console: Console, times: int, loads: int
) -> None:
    """A page that is about to be replaced takes no input; at last it is shown without the style."""
    await lose(console, "/styles/shell.css", times=times)
    await load(console.page, gateway.url, wait_until="commit")
    await expect(console.page.get_by_label("API key")).to_be_visible()
    assert len([one for one in console.addresses if one.endswith("/styles/shell.css")]) == loads
    assert len([one for one in console.addresses if one.endswith("/app.js")]) == 1


async def test_a_page_that_cannot_be_loaded_says_so(gateway: GatewayProcess, console: Console) -> None:
    """After some tries the page explains itself, and its button loads it again."""
    await lose(console, "/core/live.js", times=4)
    await load(console.page, gateway.url, wait_until="commit")
    await expect(console.page.get_by_role("alert")).to_contain_text("could not be loaded")
    await console.page.get_by_role("button", name="Load the console again").click()
    await expect(console.page.get_by_label("API key")).to_be_visible()


async def test_the_page_itself_is_all_that_must_arrive(gateway: GatewayProcess, console: Console) -> None:
    """Whichever requests are lost beside the document, the loader runs and begins again."""

    async def end(route: Route) -> None:
        if route.request.is_navigation_request():
            await route.continue_()
        else:
            await route.abort("internetdisconnected")

    await console.page.route("**", end)
    async with console.page.expect_event("requestfailed", lambda request: request.url.endswith(".css")):
        await load(console.page, gateway.url)
    await console.page.unroute("**", end)
    await expect(console.page.get_by_label("API key")).to_be_visible()


@pytest.mark.parametrize("path", ["/setup/channels.js", "/setup/channel_kinds.js"])
async def test_a_place_whose_module_was_lost_appears(
    gateway: GatewayProcess, console: Console, path: str
) -> None:
    """A place shows itself although its module, or one that it imports, was lost once."""
    await console.enter(gateway)
    lost = await lose(console, path, times=1)
    await console.open_place("Channels")
    await expect(console.page.get_by_role("heading", name="Channels", level=1)).to_be_visible()
    assert lost[path] == 1


INSIDE_ITS_LINE = """() => {
  const state = document.querySelector('[data-connection="Reconnecting"]');
  const line = state?.closest("p"), end = line?.getBoundingClientRect().right;
  const shown = [state, ...(line?.querySelectorAll("button") ?? [])];
  return shown.length === 2 && shown.every((one) => one.getBoundingClientRect().right <= end);
}"""
"""One step: the page renders the line again with each attempt to connect."""


@pytest.mark.parametrize("width", [320, 390])
async def test_a_phone_shows_the_lost_connection_and_its_button(
    gateway: GatewayProcess, console: Console, width: int
) -> None:
    """Neither the state nor the button that connects at once is cut off, or below another one."""
    page = console.page
    await page.set_viewport_size({"width": width, "height": 600})
    await page.route_web_socket(re.compile("/ws"), lambda socket: socket.close())
    await load(page, gateway.url)
    await console.submit_key(gateway.key)
    state, button = page.locator('[data-connection="Reconnecting"]'), page.get_by_role("button", name="Now")
    await expect(state).to_be_visible()
    await expect(button).to_be_visible()
    await page.wait_for_function(INSIDE_ITS_LINE)


async def test_a_lost_request_is_made_again(gateway: GatewayProcess, console: Console) -> None:
    """A list appears although its first request was ended; a key whose answer was lost is made once."""
    await console.enter(gateway)
    lost = await lose(console, "/accounts/me/keys", times=1)
    await console.open_place("Keys")
    await expect(console.page.locator("[data-key]").first).to_be_visible()
    assert lost["/accounts/me/keys"] == 1
    posts = Counter[str]()

    async def lose_first_answer(route: Route) -> None:
        repeat = await route.request.header_value("Idempotency-Key")
        if route.request.method != "POST" or repeat is None:
            await route.continue_()
            return
        posts[repeat] += 1
        response = await route.fetch()
        if posts[repeat] == 1:
            await route.abort("connectionreset")
        else:
            await route.fulfill(response=response)

    await console.page.route("**/accounts/me/keys", lose_first_answer)
    form = console.page.get_by_role("form", name="Create a key")
    await form.get_by_label("Name").fill("once")
    await form.get_by_role("button", name="Create").click()
    await expect(console.page.locator(".secret code")).to_have_text(re.compile("^dvk_"))
    assert list(posts.values()) == [2]
    assert [key["name"] for key in await records(gateway, "keys")].count("once") == 1


async def test_a_change_whose_answer_was_lost_is_done(gateway: GatewayProcess, console: Console) -> None:
    """A save with a version, and a removal, are made again; that they were made is then no error."""
    page, lost = console.page, Counter[str]()

    async def lose_first_answer(route: Route) -> None:
        method = route.request.method
        if method not in {"PUT", "DELETE"}:
            await route.continue_()
            return
        lost[method] += 1
        response = await route.fetch()
        if lost[method] == 1:
            await route.abort("connectionreset")
        else:
            await route.fulfill(response=response)

    await page.route("**/accounts/me/**", lose_first_answer)
    await console.enter(gateway)
    await console.open_place("Usage")
    await page.get_by_text("Budget of each person").click()
    form = page.get_by_role("form", name="Budget of each person")
    await form.get_by_label("Tokens per day").fill("700")
    await form.get_by_role("button", name="Save").click()
    await expect(form.get_by_role("status")).to_have_text("Done.")
    await add_key(gateway, "passing")
    await console.open_place("Keys")
    await page.locator('[data-key="passing"]').get_by_role("button", name="Revoke").click()
    await page.get_by_role("button", name="Revoke now").click()
    await expect(page.locator('[data-key="passing"]')).to_have_count(0)
    assert lost == {"PUT": 2, "DELETE": 2}


async def test_a_concurrent_save_is_accepted_or_replaced(gateway: GatewayProcess, console: Console) -> None:
    """A form whose field another user changed shows both ways on: take theirs, or replace theirs."""
    page = console.page
    await add_agent(gateway, "both", {"model": "builtin:shell"})
    await console.enter(gateway)
    await console.open_place("Agents")
    await page.get_by_role("link", name="both", exact=True).click()
    settings = page.get_by_role("form", name="Settings")
    instructions = settings.get_by_label("Instructions")
    for theirs, button in (("Theirs", "Take theirs"), ("Again", "Replace theirs")):
        await instructions.fill("Mine")
        await change(gateway, "agents/both", {"instructions": theirs})
        await settings.get_by_role("button", name="Save").click()
        await expect(fault_of(instructions)).to_contain_text(theirs)
        await settings.get_by_role("button", name=button).click()
        await expect(fault_of(instructions)).to_have_count(0)
        if button == "Take theirs":
            await expect(instructions).to_have_value(theirs)
    await expect(settings.get_by_role("status")).to_have_text("Done.")
    (known,) = [one for one in await records(gateway, "agents") if one["name"] == "both"]
    assert known["config"]["instructions"] == "Mine"


async def test_code_is_coloured_by_a_worker(gateway: GatewayProcess, console: Console) -> None:
    """The colours come without any markup, and a block of another language stays as it is."""
    page = console.page
    await console.enter(gateway)
    blocks = "".join(f"```python\ndef part{number}(a):\n    return a\n```\n" for number in range(5))
    await page.get_by_role("link", name="New conversation").first.click()
    await console.send_message(f"Look\n{blocks}```unknown\ndef plain\n```")
    code = page.locator('[data-role="assistant"] pre.code')
    await expect(code.locator(".code-keyword", has_text="def").first).to_be_visible()
    await expect(code).to_have_count(6)
    await expect(code.last).to_have_text("def plain")
    await expect(code.last.locator("span")).to_have_count(0)
    assert any(address.endswith("/vendor/highlight.mjs") for address in console.addresses)


async def test_an_unknown_conversation_is_said_and_nothing_is_waited_for(
    gateway: GatewayProcess, console: Console
) -> None:
    """The line of the connection does not say that more comes."""
    await console.enter(gateway)
    await load(console.page, f"{gateway.url}/#/inbox/cnv_0000000000000000000000")
    await expect(console.page.get_by_role("alert").first).to_contain_text("no such conversation")
    await expect(console.page.locator('[data-connection="Connected"]')).to_be_visible()
