"""The places of the console, used as a person uses them: one gateway, one browser, a scripted model."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from axe_checks import find_barriers
from channels.telegram.simulator import simulate
from console_driver import CHROMIUM, Console, load, open_console
from demo_content import fill
from demo_model import answer
from gateway_process import GatewayProcess, reserve_port
from gateway_process import gateway as running
from oidc_issuer import CLIENT_ID, CLIENT_SECRET, LoopbackIssuer, loopback_issuer
from openai_server import OpenAIServer

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, which draws the console"),
    pytest.mark.timeout(180),
]

PLACES = (
    *("Home", "Inbox", "Approvals", "Jobs", "Turns", "Deliveries", "Streams", "Health", "Channels"),
    *("Agents", "Sandboxes", "Workspaces", "Schedules", "Memory", "Webhooks", "Keys", "Usage", "Audit"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def issuer() -> AsyncIterator[LoopbackIssuer]:
    """The identity provider of the gateway, at which everybody is signed in."""
    async with loopback_issuer() as provider:
        yield provider


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, issuer: LoopbackIssuer
) -> AsyncIterator[GatewayProcess]:
    """A gateway whose agent plays the part that each message names."""
    port = reserve_port()
    async with OpenAIServer(answer) as model:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
            "OPENAI_API_KEY": "loopback",
            "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
            "DOVECOTE_PUBLIC_URL": f"http://127.0.0.1:{port}",
            "DOVECOTE_OIDC__ISSUER": issuer.url,
            "DOVECOTE_OIDC__CLIENT_ID": CLIENT_ID,
            "DOVECOTE_OIDC__CLIENT_SECRET": CLIENT_SECRET,
            "DOVECOTE_OIDC__LABEL": "Example",
            "DOVECOTE_OIDC__END_PROVIDER_SESSION": "true",
            "DOVECOTE_OIDC__ACCESS__OPS__SCOPES": "read,chat",
        }
        data = tmp_path_factory.mktemp("pages") / "data"
        async with running(data, env=env, port=port) as process:
            yield process


@pytest_asyncio.fixture(loop_scope="module")
async def console(console: Console, gateway: GatewayProcess) -> Console:
    """A fresh page with the key entered."""
    await console.enter(gateway)
    return console


async def say(gateway: GatewayProcess, conversation: str, text: str) -> str:
    """Send a message as a program does; returns the conversation's id."""
    async with gateway.http() as session:
        body = {"conversation": conversation, "input": text}
        async with session.post("/agents/default/turns", json=body) as response:
            assert response.status == 202
            return str((await response.json())["conversationId"])


async def test_a_place_can_be_reloaded_shared_and_left_again(console: Console) -> None:
    """An address shows its place after a reload, *Back* returns, and an old address still leads there."""
    page = console.page
    await console.open_place("Turns")
    await page.get_by_role("link", name="Failed").click()
    await load(page)
    await expect(page.get_by_role("heading", name="Turns")).to_be_visible()
    await expect(page.get_by_role("link", name="Failed")).to_have_attribute("aria-current", "true")
    await console.open_place("Keys")
    await expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_role("heading", name="Turns")).to_be_visible()
    await page.evaluate("location.hash = '#/chat/new'")
    await expect(page.get_by_role("heading", name="New conversation")).to_be_visible()


async def test_a_chosen_theme_stays(console: Console) -> None:
    """The page is dark at once and after a reload, although the system is light."""
    page = console.page
    background = "getComputedStyle(document.body).backgroundColor"
    before = await page.evaluate(background)
    await page.get_by_label("Theme").select_option("dark")
    after = await page.evaluate(background)
    assert after != before
    await load(page)
    await expect(page.get_by_label("Theme")).to_have_value("dark")
    assert await page.evaluate(background) == after


async def test_a_call_is_approved_with_a_comment_from_the_inbox_of_approvals(
    gateway: GatewayProcess, console: Console
) -> None:
    """The navigation counts it, the page shows the whole call, and after the decision it is gone."""
    page = console.page
    await console.open_place("Approvals")
    await say(gateway, "deploy", "run: echo deployed-it")
    card = page.locator("[data-approval]", has_text="deployed-it")
    await expect(card).to_contain_text('network: "deny-all"')
    await expect(page.locator("[data-count]")).to_be_visible()
    await card.get_by_label("Comment").fill("go ahead")
    await card.get_by_role("button", name="Approve").click()
    await expect(card).to_have_count(0)
    await page.get_by_role("link", name="Approved").click()
    settled = page.locator('[data-approval][data-state="approved"]', has_text="deployed-it")
    await expect(settled).to_contain_text("go ahead")


async def test_a_change_of_a_file_is_shown_as_a_diff_and_denied(
    gateway: GatewayProcess, console: Console
) -> None:
    """Lines that go and lines that come have their colours; after *Deny* the file is as it was."""
    page = console.page
    async with gateway.http() as session:
        path = "/accounts/me/workspaces/default/files/story.txt"
        async with session.put(path, data=b"one\nTWO\nthree\n") as response:
            assert response.status in {200, 201, 204}
        await say(gateway, "story", "write: story.txt")
        await console.open_place("Approvals")
        card = page.locator("[data-approval]", has_text="story.txt")
        await expect(card.locator(".removed")).to_contain_text("TWO")
        await expect(card.locator(".added")).to_contain_text("two")
        await card.get_by_role("button", name="Deny").click()
        await expect(card).to_have_count(0)
        async with session.get(path) as response:
            assert await response.read() == b"one\nTWO\nthree\n"


async def test_questions_are_answered_by_choice_text_and_form(
    gateway: GatewayProcess, console: Console
) -> None:
    """Each answer reaches the agent, which repeats it."""
    page = console.page
    chosen = await say(gateway, "colour", "choose: Which colour?")
    await say(gateway, "reason", "ask: Why delete it?")
    await say(gateway, "server", "form: Where does it run?")
    await console.open_place("Approvals")
    colour = page.locator("[data-approval]", has_text="Which colour?")
    await colour.get_by_role("button", name="Blue").click()
    reason = page.locator("[data-approval]", has_text="Why delete it?")
    await reason.get_by_label("Answer").fill("It is empty.")
    await reason.get_by_role("button", name="Answer").click()
    server = page.locator("[data-approval]", has_text="Where does it run?")
    await server.get_by_label("host").fill("db.example.org")
    await server.get_by_label("port").fill("5432")
    await server.get_by_role("button", name="Answer").click()
    for card in (colour, reason, server):
        await expect(card).to_have_count(0)
    await load(page, f"{gateway.url}/#/inbox/{chosen}")
    await expect(page.locator('[data-role="assistant"]').last).to_contain_text("Blue")


async def test_the_inbox_finds_marks_and_filters(gateway: GatewayProcess, console: Console) -> None:
    """A new message is marked unread with its last line; search and filter narrow the list."""
    page = console.page
    await console.open_place("Inbox")
    talk = await say(gateway, "fresh", "Good morning from far away")
    row = page.locator(f'[data-conversation="{talk}"]')
    await expect(row.locator(".last")).to_contain_text("echo: Good morning from far away")
    await expect(row).to_contain_text("unread")
    await row.click()
    await expect(page.locator('[data-role="assistant"]')).to_contain_text("echo: Good morning")
    await expect(row).not_to_contain_text("unread")
    broken = await say(gateway, "broken", "break it")
    await page.get_by_label("State").select_option("failed")
    await expect(page.locator(f'[data-conversation="{broken}"]')).to_contain_text("failed")
    await expect(row).to_have_count(0)
    await page.get_by_label("State").select_option("")
    await page.get_by_label("Search conversations").fill("FAR AWAY")
    await expect(row).to_be_visible()
    await expect(page.locator("[data-conversation]")).to_have_count(1)
    await load(page)
    await expect(page.locator("[data-conversation]")).to_have_count(1)


async def test_more_conversations_than_a_page_are_listed(gateway: GatewayProcess, console: Console) -> None:
    """The list grows at its end until every conversation is there, each once."""
    page = console.page
    async with gateway.http() as session:
        for number in range(110):
            body = {"conversation": f"many-{number:03}", "text": "later", "at": "2030-01-01T00:00:00Z"}
            async with session.post("/accounts/me/schedules", json=body) as response:
                assert response.status == 201
    await load(page, f"{gateway.url}/#/inbox?q=many-")
    rows = page.locator("[data-conversation]")
    await expect(rows.nth(99)).to_be_attached()
    await rows.nth(99).scroll_into_view_if_needed()
    await page.locator(".conversations").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    await expect(rows).to_have_count(110)


async def test_a_person_takes_over_answers_and_gives_back(gateway: GatewayProcess, console: Console) -> None:
    """While a person handles the conversation the agent is silent; afterwards it answers again."""
    page = console.page
    talk = await say(gateway, "handed", "I need a person")
    await load(page, f"{gateway.url}/#/inbox/{talk}")
    await expect(page.locator('[data-role="assistant"]')).to_have_count(1)
    await page.get_by_role("button", name="Take over").click()
    await expect(page.get_by_text("You handle this conversation")).to_be_visible()
    await console.send_message("Here I am.")
    await expect(page.locator('[data-role="operator"]')).to_contain_text("Here I am.")
    await page.get_by_role("button", name="Give back").click()
    await expect(page.get_by_role("button", name="Take over")).to_be_visible()
    await console.send_message("And now?")
    await expect(page.locator('[data-role="assistant"]').last).to_contain_text("echo:")
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete for good").click()
    await expect(page.get_by_text("No conversation is open")).to_be_visible()
    await expect(page.locator(f'[data-conversation="{talk}"]')).to_have_count(0)


async def test_files_are_attached_pasted_and_dropped(console: Console) -> None:
    """All three ways show the file before it is sent, and the message has it afterwards."""
    page = console.page
    await page.get_by_role("link", name="New conversation").first.click()
    await page.locator('input[type="file"]').set_input_files(
        {"name": "plan.txt", "mimeType": "text/plain", "buffer": b"the plan"}
    )
    give = """([kind, name]) => {
        const data = new DataTransfer();
        data.items.add(new File(["picture"], name, {type: "image/png"}));
        const how = {bubbles: true, cancelable: true};
        const given = kind === "paste" ? new ClipboardEvent("paste", {clipboardData: data, ...how})
            : new DragEvent("drop", {dataTransfer: data, ...how});
        document.querySelector("#say").dispatchEvent(given);
    }"""
    await page.evaluate(give, ["paste", "pasted.png"])
    await page.evaluate(give, ["drop", "dropped.png"])
    stored = page.locator('.uploads [data-stored="true"]')
    await expect(stored).to_have_count(3)
    await expect(stored.locator("img")).to_have_count(2)
    await page.get_by_role("button", name="Remove dropped.png").click()
    await console.send_message("Look at these")
    mine = page.locator('[data-kind="message"][data-role="user"]')
    await expect(mine).to_contain_text("plan.txt")
    await expect(mine).to_contain_text("pasted.png")
    await expect(mine).not_to_contain_text("dropped.png")


async def test_an_answer_is_one_unit_with_tables_tasks_and_code(console: Console) -> None:
    """Markdown is drawn, and below it are duration, tokens and the way to the trace."""
    page = console.page
    await console.start_conversation("report please")
    said = page.locator('[data-role="assistant"]')
    await expect(said.locator("table td").first).to_have_text("importer.py")
    await expect(said.locator("li.task input")).to_have_count(3)
    await expect(said.locator("li li")).to_have_count(2)
    await expect(said.get_by_role("button", name="Copy")).to_be_visible()
    await expect(page.locator("[data-turn]")).to_have_count(1)
    foot = page.locator('[data-kind="turn"]')
    await expect(foot).to_contain_text("1,790 tokens")
    await foot.get_by_role("link", name="Trace").click()
    await expect(page.get_by_role("heading", name="Trace")).to_be_visible()
    await expect(page.locator(".step").last).to_be_visible()
    await expect(page.locator(".facts")).to_contain_text("310 out")


async def test_a_wait_for_another_attempt_counts_down_and_is_cancelled(console: Console) -> None:
    """The card names the reason and the seconds until the next attempt; *Cancel* ends the turn."""
    page = console.page
    await console.start_conversation("busy: try later")
    card = page.locator('[data-kind="retry"]').last
    await expect(card).to_contain_text(re.compile(r"in \d+ s"))
    await card.get_by_role("button", name="Cancel").click()
    await expect(page.locator('[data-kind="note"]').last).to_contain_text("Cancelled")


async def test_a_running_job_is_one_card_with_its_log(gateway: GatewayProcess, console: Console) -> None:
    """The log grows in the card while the job runs, and the same card shows the end."""
    page = console.page
    await console.start_conversation(
        "job: echo first-line; while [ ! -e go-on ]; do sleep 0.2; done; echo last-line"
    )
    await page.locator('[data-kind="approval"]').get_by_role("button", name="Approve").click()
    job = page.locator('[data-kind="job"]')
    await expect(job.get_by_label("Log")).to_contain_text("first-line")
    path = "/accounts/me/workspaces/default/files/go-on"
    async with gateway.http() as session, session.put(path, data=b"") as response:
        assert response.status < 300
    await expect(job).to_have_count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(gateway: GatewayProcess) -> str:
    """Something on every place; returns the conversation with a long answer."""
    async with simulate() as platform, gateway.http() as session:
        return (await fill(session, platform)).report


async def test_no_place_has_barriers(gateway: GatewayProcess, browser: Browser, filled: str) -> None:
    """Axe finds nothing moderate or worse on any place, light and wide, dark and narrow."""
    async with open_console(browser) as view:
        await load(view.page, gateway.url)
        await expect(view.page.get_by_label("API key")).to_be_visible()
        await has_no_barriers(view.page, "entry")
        await view.enter(gateway)
        for name in PLACES:
            await load(view.page, f"{gateway.url}/#/{name.lower()}")
            await expect(view.page.locator("main h1").first).to_be_visible()
            await view.page.wait_for_load_state("networkidle")
            await has_no_barriers(view.page, name)
        await load(view.page, f"{gateway.url}/#/inbox/{filled}")
        await view.is_caught_up()
        await has_no_barriers(view.page, "a conversation")
        await view.page.locator('[data-kind="turn"]').last.get_by_role("link", name="Trace").click()
        await expect(view.page.get_by_role("heading", name="Trace")).to_be_visible()
        await has_no_barriers(view.page, "a trace")


SCHEMES: tuple[tuple[Literal["light", "dark"], int], ...] = (("dark", 390), ("light", 1280))
"""The colours of a page with its width in pixels."""


async def has_no_barriers(page: Page, name: str) -> None:
    """Check the page in both schemes, and that it is not wider than its window."""
    for scheme, width in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size({"width": width, "height": 800})
        await expect(page.locator("h1:visible").first).to_be_visible()  # what the page shows has arrived
        assert (name, scheme, await find_barriers(page)) == (name, scheme, [])
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, scheme)


async def test_the_printed_link_opens_the_console_once(gateway: GatewayProcess, browser: Browser) -> None:
    """The link needs no key; its code leaves the address, and the link opens nothing a second time."""
    link = next(found for line in gateway.log if (found := re.search(r"open the console: (\S+)", line)))[1]
    code = link.rpartition("/")[2]
    async with open_console(browser) as first:
        await load(first.page, link)
        await expect(first.page.get_by_role("heading", name="Home")).to_be_visible()
        assert code not in first.page.url
        assert [one for one in first.addresses if gateway.key in one or code in one.partition("#")[0]] == []
    async with open_console(browser) as second:
        await load(second.page, link)
        await expect(second.page.get_by_role("alert")).to_contain_text("was used before")
        await expect(second.page.get_by_label("API key")).to_be_visible()


async def test_a_person_signs_in_with_the_identity_provider_and_leaves(
    gateway: GatewayProcess, issuer: LoopbackIssuer, browser: Browser
) -> None:
    """The button leads to the provider and back; *Leave* ends the key and the provider's session."""
    async with open_console(browser) as view:
        page = view.page
        await load(page, gateway.url)
        await page.get_by_role("link", name="Sign in with Example").click()
        await expect(page.get_by_role("heading", name="Home")).to_be_visible()
        key = await page.evaluate("sessionStorage.getItem('dovecote.key')")
        assert [address for address in view.addresses if key in address] == []
        await view.start_conversation("hello from the office")
        await expect(page.locator(".mine .who").last).to_have_text("You")
        await page.get_by_role("button", name="Leave").click()
        await page.wait_for_url(f"{issuer.url}/end?**")
        assert await view.violations() == []
        async with gateway.http() as session:
            headers = {"Authorization": f"Bearer {key}"}
            async with session.get("/accounts/me", headers=headers) as answer:
                assert answer.status == 401


async def test_a_failed_sign_in_is_explained(
    gateway: GatewayProcess, issuer: LoopbackIssuer, browser: Browser
) -> None:
    """Who has no access reads it on the page, and can still enter a key."""
    issuer.claims, kept = {"sub": "2", "groups": ["others"]}, issuer.claims
    async with open_console(browser) as view:
        await load(view.page, gateway.url)
        await view.page.get_by_role("link", name="Sign in with Example").click()
        await expect(view.page.get_by_role("alert")).to_contain_text("no access to this gateway")
        await view.submit_key(gateway.key)
        await expect(view.page.get_by_role("heading", name="Home")).to_be_visible()
    issuer.claims = kept
