"""The console in a real browser, before a real gateway."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, WebSocketRoute, expect

from console_driver import CHROMIUM, Console, load, open_console
from gateway_process import GatewayProcess
from gateway_process import gateway as running
from openai_server import OpenAIServer, echo

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, which draws the console"),
    pytest.mark.timeout(180),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayProcess]:
    """A gateway with its own data directory and the shell agent; each story has its own conversation."""
    env = {"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}
    async with running(tmp_path_factory.mktemp("console") / "data", env=env) as process:
        yield process


async def test_a_command_is_run_and_its_output_shown(gateway: GatewayProcess, console: Console) -> None:
    """After a wrong key and then the right one, `!echo hi` becomes a tool card and an answer."""
    page = console.page
    await load(page, gateway.url)
    await console.submit_key("dvk_wrong")
    await expect(page.get_by_role("alert")).to_contain_text("refused this key")
    await console.enter(gateway)
    await console.start_conversation("!echo hi")
    await expect(page.locator(".mine .who")).to_have_text(["You"])
    tool = page.locator('[data-kind="tool"][data-state="done"]')
    await expect(tool.get_by_label("Command")).to_contain_text("echo hi")
    await expect(tool.get_by_label("Output")).to_have_text(re.compile(r"^hi\s*$"))
    await expect(tool).to_contain_text("exit code 0")
    await expect(page.locator('[data-kind="message"][data-role="assistant"]').last).to_contain_text("hi")


async def test_turns_are_asked_about_once_the_history_has_loaded(
    gateway: GatewayProcess, console: Console
) -> None:
    """They pass by while it loads: each was asked about, 2,500 turns in a conversation of 5,000 messages."""
    page, held, may_end = console.page, list[tuple[WebSocketRoute, str | bytes]](), list[bool]()

    def hold_the_end(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def pass_on(message: str | bytes) -> None:
            if json.loads(message)["type"] == "caught_up" and not may_end:
                held.append((route, message))
            else:
                route.send(message)

        server.on_message(pass_on)

    await console.enter(gateway)
    await console.start_conversation("!echo hi")
    foot = page.locator('[data-kind="turn"]')
    await expect(foot).to_have_count(1)
    await page.route_web_socket(re.compile("/ws$"), hold_the_end)
    await load(page)
    await expect(foot).to_have_text("1 step Trace")
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
    await expect(foot).to_have_text("1 step Trace")
    may_end.append(True)
    for route, message in held:
        route.send(message)
    await expect(foot).to_contain_text("tokens")


async def test_an_edited_message_is_a_version_beside_the_first(
    gateway: GatewayProcess, console: Console
) -> None:
    """The new answer takes the place of the first, which can still be read; the API lists the branch."""
    page = console.page
    await console.enter(gateway)
    await console.start_conversation("!echo first")
    answer = page.locator('[data-kind="message"][data-role="assistant"]')
    await expect(answer).to_have_text(re.compile("first"))
    await page.get_by_role("button", name="Edit and run again").click()
    await page.get_by_label("Your message").fill("!echo second")
    await page.get_by_role("button", name="Run again", exact=True).click()
    await expect(answer).to_have_text(re.compile("second"))
    await expect(page.locator('[data-kind="version"]')).to_have_text("2 / 2")
    await page.get_by_role("button", name="Earlier version").click()
    await expect(answer).to_have_text(re.compile("first"))
    await expect(page.get_by_role("button", name="Edit and run again")).to_be_hidden()
    await page.get_by_role("button", name="Later version").click()
    await expect(answer).to_have_text(re.compile("second"))
    await load(page)
    await expect(page.locator('[data-kind="version"]')).to_have_text("2 / 2")
    conversation = page.url.rpartition("/")[2]
    async with gateway.http() as session, session.get(f"/conversations/{conversation}") as found:
        (branch,) = (await found.json())["branches"]
    assert branch["turns"] == [branch["turn"]]
    assert branch["rerun"] not in branch["turns"]


async def test_a_new_tab_needs_no_key_and_leaving_ends_all_tabs(
    gateway: GatewayProcess, console: Console
) -> None:
    """A further tab takes the session over and shows the navigation; *Leave* ends both."""
    await console.enter(gateway)
    second = await console.page.context.new_page()
    await load(second, gateway.url)
    await expect(second.get_by_role("navigation", name="Views")).to_be_visible()
    assert gateway.key not in await second.evaluate("JSON.stringify(localStorage)")
    await second.get_by_role("button", name="Leave").click()
    await expect(second.get_by_label("API key")).to_be_visible()
    await expect(console.page.get_by_label("API key")).to_be_visible()
    await second.close()


async def test_what_was_said_with_this_key_before_is_ours(
    gateway: GatewayProcess, console: Console, browser: Browser
) -> None:
    """A fresh tab shows messages of its key as its own, although it has sent none itself."""
    await load(console.page, gateway.url)
    await console.enter(gateway)
    await console.start_conversation("!echo earlier")
    await expect(console.page.locator(".theirs").last).to_contain_text("earlier")
    async with open_console(browser) as other:
        await other.enter(gateway)
        await load(other.page, console.page.url)
        await expect(other.page.locator(".mine .who")).to_have_text("You")


async def test_the_key_stays_out_of_addresses_and_lasting_storage(
    gateway: GatewayProcess, console: Console
) -> None:
    """No request, socket or page address contains the key, and only this tab's session stores it."""
    await console.enter(gateway)
    await console.start_conversation("!echo hi")
    assert any(address.startswith("ws://") for address in console.addresses)
    assert [address for address in console.addresses if gateway.key in address] == []
    assert gateway.key not in await console.page.evaluate("JSON.stringify(localStorage) + document.cookie")
    assert gateway.key in await console.page.evaluate("JSON.stringify(sessionStorage)")


async def test_the_result_of_a_background_job_comes_home(gateway: GatewayProcess, console: Console) -> None:
    """A job shows in Jobs with its log, and its result arrives in the chat that asked for it."""
    page = console.page
    await console.enter(gateway)
    await console.start_conversation("!&sleep 1; echo all-done")
    await expect(page.locator('[data-kind="job"]')).to_be_visible()
    await console.open_place("Jobs")
    await page.locator("[data-job]").click()
    await expect(page.locator(".facts .badge")).to_have_text("completed")
    await expect(page.get_by_label("Log")).to_contain_text("all-done")
    await page.get_by_role("link", name="Open the conversation").click()
    await expect(page.locator('[data-kind="job"][data-state="completed"]')).to_contain_text("all-done")
    await expect(page.locator('[data-kind="message"]').last).to_contain_text("all-done")


async def test_a_killed_gateway_is_found_again_and_nothing_shows_twice(
    gateway: GatewayProcess, console: Console
) -> None:
    """The page says that it lost the gateway, comes back by itself, and shows every message once,
    the one typed in between included."""
    page = console.page
    await console.enter(gateway)
    await console.start_conversation("!echo before")
    messages = page.locator('[data-kind="message"]')
    await expect(messages).to_have_count(2)
    await gateway.kill()
    await expect(page.locator('[data-connection="Reconnecting"]')).to_be_visible()
    await console.send_message("!echo between")
    await expect(page.locator('[data-kind="letter"][data-state="sending"]')).to_be_visible()
    await gateway.start()
    await console.is_caught_up()
    await expect(messages).to_have_count(4)
    await console.send_message("!echo after")
    await expect(messages).to_have_count(6)
    typed = page.locator('[data-kind="message"][data-role="user"] .text')
    await expect(typed).to_have_text(["!echo before", "!echo between", "!echo after"])
    await expect(page.locator('[data-kind="letter"]')).to_have_count(0)
    await expect(page.locator(".hole")).to_have_count(0)


async def test_a_missing_event_is_seen_and_said(gateway: GatewayProcess, console: Console) -> None:
    """When an event never arrives the page names its number, and reading again from the start mends it."""
    lost: list[int] = []

    def lose_one(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def pass_on(message: str | bytes) -> None:
            frame = json.loads(message)
            items = frame.get("items", [frame])
            found = [item["n"] for item in items if item["type"] == "tool.called" and not lost]
            lost.extend(found)
            kept = [item for item in items if item.get("n") not in found]
            for item in kept if found else []:
                route.send(json.dumps(item))
            if not found:
                route.send(message)

        server.on_message(pass_on)

    page = console.page
    await page.route_web_socket(re.compile("/ws$"), lose_one)
    await console.enter(gateway)
    await console.start_conversation("!echo hi")
    warning = page.locator(".hole")
    await expect(warning).to_contain_text("did not arrive")
    await expect(warning).to_contain_text(str(lost[0]))
    await warning.get_by_role("button", name="Read it again from the start").click()
    await expect(warning).to_have_count(0)
    await expect(page.locator('[data-kind="tool"]').get_by_label("Command")).to_contain_text("echo hi")


async def test_a_conversation_is_found_by_its_title_and_renamed(
    gateway: GatewayProcess, console: Console
) -> None:
    """The list shows the first message as the title, and the new title after a rename."""
    page = console.page
    await console.enter(gateway)
    await console.start_conversation("!echo plan the trip")
    conversations = page.get_by_role("navigation", name="Conversations")
    await expect(conversations.locator(".name", has_text="!echo plan the trip")).to_be_visible()
    await page.get_by_role("button", name="Rename").click()
    await page.get_by_label("Title").fill("Holidays")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="Holidays")).to_be_visible()
    await load(page)
    await expect(conversations.locator(".name", has_text="Holidays")).to_be_visible()


async def test_hostile_texts_are_only_texts(gateway: GatewayProcess, console: Console) -> None:
    """Markup, script links and endless lines from anybody are shown and do nothing."""
    page = console.page
    await console.enter(gateway)
    await console.start_conversation(
        "<img src=x onerror=alert(1)> [x](javascript:alert(1)) <script>alert(1)</script>"
    )
    await console.send_message("!printf '%s\\n' '<img src=x onerror=alert(1)>' '[x](javascript:alert(1))'")
    await console.send_message("!head -c 100000 /dev/zero | tr '\\0' x")
    await console.send_message("y" * 100_000)
    await expect(page.locator('[data-kind="message"][data-role="user"]')).to_have_count(4)
    await expect(page.locator('[data-kind="tool"][data-state="done"]')).to_have_count(2)
    await expect(page.locator('[data-kind="message"][data-role="assistant"]')).to_have_count(4)
    assert await page.locator("main img, main script, a[href^='javascript']").count() == 0
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_revoked_key_leads_back_to_the_form(gateway: GatewayProcess, console: Console) -> None:
    """A key that is revoked while the page is open ends the session with a message."""
    async with gateway.http() as session:
        scopes = ["read", "chat", "jobs", "admin"]
        async with session.post("/accounts/me/keys", json={"name": "desk", "scopes": scopes}) as answer:
            made = await answer.json()
        await console.enter(gateway, made["key"])
        async with session.delete(f"/accounts/me/keys/{made['id']}") as answer:
            assert answer.status == 204
    await expect(console.page.get_by_role("alert")).to_contain_text("no longer accepted")
    await expect(console.page.get_by_label("API key")).to_be_visible()


async def test_a_person_approves_one_command_and_denies_another(tmp_path: Path, console: Console) -> None:
    """The card shows the exact command; approved it runs, denied it does not."""
    page = console.page
    async with OpenAIServer(echo) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        async with running(tmp_path / "data", env=env | {"OPENAI_API_KEY": "loopback"}) as gateway:
            await console.enter(gateway)
            await console.start_conversation("run: echo approved-this")
            card = page.locator('[data-kind="approval"]')
            await expect(card.get_by_label("The exact call")).to_contain_text("echo approved-this")
            await card.get_by_role("button", name="Approve").click()
            await expect(page.locator('[data-kind="tool"][data-state="done"]')).to_contain_text("exit code 0")
            await expect(page.locator('[data-kind="message"]').last).to_contain_text("approved-this")
            await console.send_message("run: echo never-this")
            await card.last.get_by_role("button", name="Deny").click()
            await expect(card.last).to_have_attribute("data-state", "denied")
            await expect(page.locator('[data-kind="message"]')).to_have_count(4)
            await expect(page.locator('[data-kind="tool"]')).to_have_count(1)


async def test_the_page_fits_a_small_screen(gateway: GatewayProcess, browser: Browser) -> None:
    """At 360 pixels every view is as wide as the screen, and a conversation can be left for the list."""
    async with open_console(browser, width=360, height=740, dark=True) as view:
        await view.enter(gateway)
        await view.start_conversation("!seq 200")
        await expect(view.page.locator('[data-kind="tool"][data-state="done"]')).to_be_visible()
        await view.page.get_by_role("link", name="← Conversations").click()
        await expect(view.page.get_by_role("navigation", name="Conversations")).to_be_visible()
        for name in ("Jobs", "Deliveries", "Streams", "Webhooks", "Health"):
            await view.open_place(name)
            await expect(view.page.get_by_role("heading", name=name)).to_be_visible()
            assert await view.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
