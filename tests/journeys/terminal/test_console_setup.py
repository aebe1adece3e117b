"""The set-up places of the console, used as a person uses them: one gateway, one browser, the shell agent."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from axe_checks import find_barriers
from channels.telegram.simulator import Simulator, simulate
from console_driver import CHROMIUM, Console, load, open_console
from console_setup import add_agent, change, connect_telegram, fault_of, records
from gateway_process import GatewayProcess
from gateway_process import gateway as running

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, which draws the console"),
    pytest.mark.timeout(180),
]

PERSON = 4711


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayProcess]:
    """A gateway with the shell agent, which may call this machine."""
    env = {"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}
    async with running(tmp_path_factory.mktemp("setup") / "data", env=env) as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform() -> AsyncIterator[Simulator]:
    """Telegram on loopback."""
    async with simulate() as simulator:
        yield simulator


@pytest_asyncio.fixture(loop_scope="module")
async def console(console: Console, gateway: GatewayProcess) -> AsyncIterator[Console]:
    """A fresh page with the key entered, which has no barriers by the end."""
    await console.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await console.enter(gateway)
    yield console
    assert await find_barriers(console.page) == []


async def test_a_bot_is_connected_tested_and_paused_and_a_person_let_in(
    gateway: GatewayProcess, console: Console, platform: Simulator
) -> None:
    """A person connects a bot, checks it, lets another in by their code, pauses the bot and removes it."""
    page = console.page
    await console.open_place("Channels")
    await expect(page.get_by_text("No channel yet")).to_be_visible()
    await connect_telegram(page, platform, "helpdesk")
    await expect(page.get_by_role("heading", name="helpdesk")).to_be_visible()
    state = page.locator(".facts .badge").first
    await expect(state).to_have_text("receiving")
    await page.get_by_role("button", name="Test the connection").click()
    await expect(page.locator('ul[role="status"] .badge').first).to_have_text("ok")
    await platform.say(PERSON, "!echo hello", name="Ada")
    reported = await platform.wait_for_messages(1, chat=PERSON)
    code = re.search(r"pair helpdesk (\w{8})", reported[-1].text)
    assert code is not None, reported[-1].text
    asks = page.locator(f'[data-person="{PERSON}"]')
    await expect(asks).to_contain_text("Ada")
    await asks.get_by_label("Their code").fill("WRONG123")
    await asks.get_by_role("button", name="Let in").click()
    await expect(asks.get_by_role("alert")).to_be_visible()
    await asks.get_by_label("Their code").fill(code[1])
    await asks.get_by_role("button", name="Let in").click()
    await expect(asks.locator(".badge")).to_have_text("paired")
    await page.get_by_role("button", name="Pause").click()
    await expect(state).to_have_text("paused")
    await platform.say(PERSON, "!echo meanwhile", name="Ada")
    await page.get_by_role("button", name="Resume").click()
    await expect(state).to_have_text("receiving")
    await platform.wait_until(lambda: any("meanwhile" in one.text for one in platform.messages(PERSON)))
    await page.get_by_text("Change the settings").click()
    await page.get_by_label("Settings (JSON)").fill('{"token": "***", "allow": 5}')
    await page.get_by_role("button", name="Save the settings").click()
    await expect(page.get_by_role("form", name="Settings").locator(".fault")).to_be_visible()
    await page.get_by_role("button", name="Remove").click()
    await expect(page.get_by_role("button", name="Confirm removal")).to_be_focused()
    await page.get_by_role("button", name="Confirm removal").click()
    await expect(page.get_by_text("No channel yet")).to_be_visible()
    assert await records(gateway, "channels") == []


async def test_a_bot_is_connected_paused(console: Console, platform: Simulator) -> None:
    """It receives nothing before a person resumes it."""
    page = console.page
    await console.open_place("Channels")
    form = page.get_by_role("form", name="Connect Telegram")
    await form.get_by_label("Connect it paused").check()
    await connect_telegram(page, platform, "later")
    await expect(page.locator(".facts .badge").first).to_have_text("paused")
    await page.get_by_role("button", name="Remove").click()
    await page.get_by_role("button", name="Confirm removal").click()
    await expect(page.get_by_text("No channel yet")).to_be_visible()


async def test_faults_of_a_channel_are_shown_at_their_fields(console: Console, platform: Simulator) -> None:
    """A wrong setting is named where it was typed, what was typed stays, and the manifest can be copied."""
    page = console.page
    await console.open_place("Channels")
    form = page.get_by_role("form", name="Connect Telegram")
    await form.get_by_label("Bot token").fill("1:token")
    await form.get_by_label("Further settings").fill("allow: anybody")
    await form.get_by_role("button", name="Connect").click()
    await expect(fault_of(form.get_by_label("Further settings"))).to_contain_text("is no JSON")
    await expect(form.get_by_label("Further settings")).to_be_focused()
    await form.get_by_label("Name").fill("a/b")
    await form.get_by_label("Further settings").fill("")
    await form.get_by_role("button", name="Connect").click()
    await expect(fault_of(form.get_by_label("Name"))).to_contain_text("slash")
    await expect(form.get_by_label("Bot token")).to_have_value("1:token")
    await page.get_by_label("Platform").select_option("slack")
    await page.get_by_text("Manifest of the app").click()
    await page.get_by_role("button", name="Copy the manifest").click()
    await expect(page.get_by_text("Copied.")).to_be_visible()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == await page.get_by_label("Manifest", exact=True).text_content()


async def test_an_agent_is_added_once_and_changed(gateway: GatewayProcess, console: Console) -> None:
    """Two presses add one agent; a wrong model is named at its field; *Try* opens a conversation with it."""
    page = console.page
    await console.open_place("Agents")
    form = page.get_by_role("form", name="Add an agent")
    await form.get_by_label("Name").fill("helper")
    await form.get_by_label("Model").fill("nonsense")
    await form.get_by_role("button", name="Add", exact=True).click()
    await expect(form.get_by_label("Model")).to_be_focused()
    await expect(fault_of(form.get_by_label("Model"))).not_to_be_empty()
    await form.get_by_label("Model").fill("builtin:shell")
    await form.get_by_role("button", name="Add", exact=True).dblclick()
    await expect(page.get_by_role("heading", name="helper")).to_be_visible()
    assert [one["name"] for one in await records(gateway, "agents")].count("helper") == 1
    settings = page.get_by_role("form", name="Settings")
    await settings.get_by_label("Instructions").fill("Be brief.")
    await settings.get_by_label("Tools").fill("read bash")
    await settings.get_by_label("Sandbox").select_option("default")
    await settings.get_by_role("button", name="Save").click()
    await expect(settings.get_by_role("status")).to_have_text("Done.")
    permissions = page.get_by_role("form", name="Permissions")
    await permissions.get_by_role("combobox").select_option("edit")
    await permissions.get_by_role("button", name="Save permissions").click()
    await expect(permissions.get_by_role("status")).to_have_text("Done.")
    (made,) = [one for one in await records(gateway, "agents") if one["name"] == "helper"]
    assert made["config"]["instructions"] == "Be brief."
    assert made["config"]["tools"] == ["read", "bash"]
    await load(page)
    await expect(settings.get_by_label("Tools")).to_have_value("read bash")
    await page.get_by_role("link", name="Try").click()
    await expect(page.get_by_role("heading", name="New conversation")).to_be_visible()
    await expect(page.locator(".begin select")).to_have_value("helper")


async def test_changes_of_another_user_are_not_overwritten_unseen(
    gateway: GatewayProcess, console: Console
) -> None:
    """The page names the field that another user changed; the other fields are saved."""
    page = console.page
    await add_agent(
        gateway, "shared", {"model": "builtin:shell", "tools": {"names": ["bash"], "scripts": "x"}}
    )
    await console.open_place("Agents")
    await page.get_by_role("link", name="shared", exact=True).click()
    settings = page.get_by_role("form", name="Settings")
    await expect(settings.get_by_label("Tools")).to_have_value("bash")
    await change(gateway, "agents/shared", {"instructions": "Theirs"})
    await settings.get_by_label("Tools").fill("bash grep")
    await settings.get_by_role("button", name="Save").click()
    await expect(settings.get_by_role("status")).to_have_text("Done.")
    await settings.get_by_label("Instructions").fill("Mine")
    await change(gateway, "agents/shared", {"instructions": "Theirs again"})
    await settings.get_by_role("button", name="Save").click()
    await expect(fault_of(settings.get_by_label("Instructions"))).to_contain_text("Theirs again")
    (known,) = [one for one in await records(gateway, "agents") if one["name"] == "shared"]
    assert known["config"]["instructions"] == "Theirs again"
    assert known["config"]["tools"]["names"] == ["bash", "grep"]
    assert known["config"]["tools"]["scripts"] == "x"
    await settings.get_by_role("button", name="Save").click()
    await expect(settings.get_by_role("status")).to_have_text("Done.")
    (known,) = [one for one in await records(gateway, "agents") if one["name"] == "shared"]
    assert known["config"]["instructions"] == "Mine"


async def test_an_agent_gets_an_mcp_server_and_a_skill(gateway: GatewayProcess, console: Console) -> None:
    """A server is connected and disconnected, a skill is written and removed; secrets are not shown."""
    page = console.page
    await add_agent(gateway, "searcher", {"model": "builtin:shell"})
    await console.open_place("Agents")
    await page.get_by_text("Add a skill").click()
    form = page.get_by_role("form", name="Add a skill")
    await form.get_by_label("Name").fill("release")
    await form.get_by_label("When to use it").fill("Before a release.")
    await form.get_by_label("What to do").fill("# Release\n")
    await form.get_by_role("button", name="Add the skill").click()
    skill = page.locator('[data-skill="release"]')
    await expect(skill).to_contain_text("Before a release.")
    path = "/accounts/me/skills/release/files/SKILL.md"
    async with gateway.http() as session, session.get(path) as response:
        assert await response.text() == "# Release\n"
    async with gateway.http() as session:
        await session.patch("/accounts/me/skills/release", json={"config": {"description": ""}})
    await console.reload()
    await expect(skill).to_contain_text("No description")
    await skill.get_by_role("button", name="Remove").click()
    await skill.get_by_role("button", name="Confirm removal").click()
    await expect(skill).to_have_count(0)
    await page.get_by_role("link", name="searcher", exact=True).click()
    await page.get_by_text("Connect an MCP server").click()
    form = page.get_by_role("form", name="Connect an MCP server")
    await form.get_by_label("Name").fill("search")
    await form.get_by_label("Address or command").fill("ftp://example.org")
    await form.get_by_label("Authorization header").fill("Bearer very-secret")
    await form.get_by_role("button", name="Connect").click()
    await expect(fault_of(form.get_by_label("Address or command"))).not_to_be_empty()
    await form.get_by_label("Address or command").fill("https://mcp.example.org/mcp")
    await form.get_by_role("button", name="Connect").click()
    server = page.locator('[data-mcp="search"]')
    await expect(server).to_contain_text("https://mcp.example.org/mcp")
    assert "very-secret" not in await page.content()
    await server.get_by_role("button", name="Disconnect").click()
    await server.get_by_role("button", name="Confirm").click()
    await expect(server).to_have_count(0)


async def test_a_sandbox_runs_a_command_shows_its_files_and_stops(
    gateway: GatewayProcess, console: Console
) -> None:
    """What a person runs in a live sandbox is shown with its exit code; its workspace is a link."""
    page = console.page
    await console.start_conversation("!echo from-the-sandbox > note.txt")
    await expect(page.locator('[data-kind="tool"][data-state="done"]')).to_be_visible()
    await console.open_place("Sandboxes")
    box = page.locator("[data-sandbox]").first
    await box.get_by_text("Run a command").click()
    await box.get_by_label("Command", exact=True).fill("cat note.txt; exit 3")
    await box.get_by_role("button", name="Run", exact=True).click()
    await expect(box.get_by_label("Output")).to_contain_text("from-the-sandbox")
    await expect(box.get_by_text("exit code 3")).to_be_visible()
    await box.get_by_role("button", name="Stop").click()
    await expect(box.locator(".badge").first).not_to_have_text("active")
    await box.get_by_role("link", name="Open the workspace").click()
    await expect(page.get_by_role("link", name="note.txt")).to_be_visible()


async def test_files_of_a_workspace_are_written_and_kept_from_being_lost(
    gateway: GatewayProcess, console: Console
) -> None:
    """A reload asks before it loses what was typed; edits do not overwrite those of another user."""
    page = console.page
    await console.open_place("Workspaces")
    await page.get_by_label("Name").fill("pap")
    assert await console.reload() == ["beforeunload"]
    await expect(page.get_by_label("Name")).to_have_value("")
    assert await console.reload() == []
    await page.get_by_label("Name").fill("papers")
    await page.get_by_role("button", name="Add").click()
    await page.get_by_role("link", name="papers").click()
    await expect(page.get_by_text("Empty", exact=True)).to_be_visible()
    await page.get_by_label("File name").fill("notes/today.md")
    await page.get_by_role("button", name="Create").click()
    editor = page.get_by_label("Content")
    await editor.fill("first")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("Saved.")).to_be_visible()
    await editor.fill("mine")
    await console.open_place("Keys")
    await page.go_back()
    await expect(editor).to_have_value("mine")
    assert await console.reload() == ["beforeunload"]
    await expect(editor).to_have_value("first")
    path = "/accounts/me/workspaces/papers/files/notes/today.md"
    async with gateway.http() as session:
        await editor.fill("mine again")
        async with session.put(path, data=b"theirs") as response:
            assert response.status < 300
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("alert")).to_contain_text("This file was changed since you read it")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("Saved.")).to_be_visible()
        async with session.get(path) as response:
            assert await response.read() == b"mine again"


async def test_files_are_uploaded_downloaded_and_deleted(gateway: GatewayProcess, console: Console) -> None:
    """A file can be taken out of a workspace; a new file replaces none; the workspace goes with its files."""
    page = console.page
    path = "/accounts/me/workspaces/drawings/files/plans/today.md"
    async with gateway.http() as session:
        async with session.post("/accounts/me/workspaces", json={"name": "drawings"}) as response:
            assert response.status == 201
        async with session.put(path, data=b"a plan") as response:
            assert response.status < 300
    await console.open_place("Workspaces")
    for name in ("drawings", "plans", "today.md"):
        await page.get_by_role("link", name=name).click()
    async with page.expect_download() as taken:
        await page.get_by_role("button", name="Download").click()
    assert (await taken.value).suggested_filename == "today.md"
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.get_by_role("button", name="Delete the file").click()
    await expect(page.get_by_role("heading", name="plans")).to_be_visible()
    await page.get_by_label("Upload files").set_input_files(
        {"name": "plan.txt", "mimeType": "text/plain", "buffer": b"the plan"}
    )
    await expect(page.get_by_role("link", name="plan.txt")).to_be_visible()
    await page.get_by_label("File name").fill("plan.txt")
    await page.get_by_role("button", name="Create").click()
    await expect(fault_of(page.get_by_label("File name"))).to_contain_text("already")
    await page.get_by_role("link", name="← Workspace").click()
    await page.get_by_role("button", name="Remove the workspace").click()
    await page.get_by_role("button", name="Remove it with all files").click()
    await expect(page.get_by_role("link", name="default")).to_be_visible()
    assert "drawings" not in [one["name"] for one in await records(gateway, "workspaces")]


async def test_notes_are_written_found_changed_and_removed(console: Console) -> None:
    """The search shows what fits alone, and an edit replaces the text."""
    page = console.page
    await console.open_place("Memory")
    form = page.get_by_role("form", name="Write a note")
    for text in ("The office is closed on Fridays.", "Coffee is on the second floor."):
        await form.get_by_label("Note").fill(text)
        await form.get_by_role("button", name="Write").click()
        await expect(page.locator("[data-memory]", has_text=text)).to_be_visible()
    await page.get_by_label("Search").fill("coffee")
    await page.get_by_label("Search").press("Enter")
    notes = page.locator("[data-memory]")
    await expect(notes).to_have_count(1)
    await notes.get_by_role("button", name="Edit").click()
    await notes.get_by_label("Note").fill("Coffee is on the third floor.")
    await notes.get_by_role("button", name="Save").click()
    await expect(notes).to_contain_text("third floor")
    await notes.get_by_role("button", name="Remove").click()
    await notes.get_by_role("button", name="Confirm removal").click()
    await expect(page.get_by_text("Nothing matches")).to_be_visible()


async def test_a_key_that_may_only_read_sees_no_way_to_change_anything(
    gateway: GatewayProcess, console: Console, browser: Browser
) -> None:
    """A key with the scope read is made and shown once; with it every place explains itself."""
    page = console.page
    await console.open_place("Keys")
    form = page.get_by_role("form", name="Create a key")
    await form.get_by_label("Name").fill("viewer")
    await form.get_by_role("button", name="Create").click()
    key = await page.locator(".secret code").inner_text()
    await page.get_by_role("button", name="I have stored it").click()
    async with open_console(browser) as other:
        await other.enter(gateway, key)
        for name in (
            "Channels",
            "Agents",
            "Sandboxes",
            "Workspaces",
            "Schedules",
            "Memory",
            "Webhooks",
            "Usage",
        ):
            await other.open_place(name)
            await expect(other.page.get_by_role("heading", name=name, level=1)).to_be_visible()
            await expect(other.page.get_by_text("This key lacks the scope")).to_be_visible()
            await expect(other.page.locator("main form")).to_have_count(0)
        await other.open_place("Keys")
        await expect(other.page.get_by_role("alert")).to_contain_text("does not have the scope 'admin'")
        assert other.console_errors == []
    await page.locator('[data-key="viewer"]').get_by_role("button", name="Revoke").click()
    await page.get_by_role("button", name="Revoke now").click()
    await expect(page.locator('[data-key="viewer"]')).to_have_count(0)


async def test_what_each_person_may_use_is_set(gateway: GatewayProcess, console: Console) -> None:
    """Limits are saved and shown again; an empty field is no limit."""
    page = console.page
    await console.open_place("Usage")
    await page.get_by_text("Budget of each person").click()
    form = page.get_by_role("form", name="Budget of each person")
    await form.get_by_label("Tokens per day").fill("50000")
    await form.get_by_label("Cost per month").fill("2.5")
    await form.get_by_role("button", name="Save").click()
    await expect(form.get_by_role("status")).to_have_text("Done.")
    async with gateway.http() as session, session.get("/accounts/me/usage") as response:
        budget = (await response.json())["budget"]
    assert (budget["person_day"]["tokens"], budget["person_month"]["cost"]) == (50000, 2.5)
    await load(page)
    await page.get_by_text("Budget of each person").click()
    await expect(form.get_by_label("Tokens per day", exact=True)).to_have_value("50000")
