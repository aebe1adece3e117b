"""Webhooks, deliveries, keys and schedules in the console: added, used and removed in a real browser."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from playwright.async_api import expect

from console_driver import CHROMIUM, Console, load
from console_setup import fault_of
from gateway_process import GatewayProcess
from gateway_process import gateway as running
from webhook_receiver import respond, webhook_receiver

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, which draws the console"),
    pytest.mark.timeout(180),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayProcess]:
    """A gateway with its own data directory and the shell agent; each story has its own conversation."""
    env = {"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}
    async with running(tmp_path_factory.mktemp("resources") / "data", env=env) as process:
        yield process


async def test_a_webhook_is_added_tested_replayed_and_removed(
    gateway: GatewayProcess, console: Console
) -> None:
    """Faults are shown at their fields, a secret is shown once, a test leads to its attempts."""
    page = console.page
    async with webhook_receiver(respond(200)) as receiver:
        await console.enter(gateway)
        await console.start_conversation("!echo heard")
        await expect(page.locator('[data-kind="tool"][data-state="done"]')).to_be_visible()
        await console.open_place("Webhooks")
        await page.get_by_label("Address").fill(receiver.url)
        await page.get_by_label("Events").fill("agent.done")
        await page.get_by_role("button", name="Add", exact=True).click()
        await expect(fault_of(page.get_by_label("Events"))).to_contain_text("there is no such event")
        await page.get_by_label("Events").fill("turn.completed")
        await page.get_by_role("button", name="Add", exact=True).click()
        await expect(page.locator(".secret")).to_be_focused()
        secret = page.locator(".secret code")
        await expect(secret).to_have_text(re.compile("^whsec_"))
        first = await secret.inner_text()
        await page.get_by_role("button", name="I have stored it").click()
        await page.get_by_role("button", name="Rotate the secret").click()
        await expect(secret).to_have_text(re.compile("^whsec_"))
        assert await secret.inner_text() != first
        await load(page)
        await expect(secret).to_have_count(0)
        await page.get_by_role("button", name="Replay the last hour").click()
        await expect(page.locator(".endpoint")).to_contain_text(re.compile(r"(is|are) sent again"))
        await page.get_by_role("button", name="Test", exact=True).click()
        await page.get_by_role("link", name="see its attempts").click()
        await expect(page.locator(".facts .badge").first).to_have_text("delivered")
        await page.go_back()
        await page.get_by_role("button", name="Remove").click()
        await page.get_by_role("button", name="Confirm removal").click()
        await expect(page.get_by_role("main")).to_be_focused()


async def test_a_failed_delivery_is_seen_and_sent_again(gateway: GatewayProcess, console: Console) -> None:
    """A test event that its receiver refuses shows its attempt, and is sent again on request."""
    page = console.page
    async with webhook_receiver(respond(500)) as receiver:
        await console.enter(gateway)
        await console.open_place("Webhooks")
        await page.get_by_label("Address").fill(receiver.url)
        await page.get_by_role("button", name="Add", exact=True).click()
        await page.get_by_role("button", name="Test", exact=True).click()
        await expect(page.get_by_text("A test event is on its way")).to_be_visible()
        await receiver.request_received.wait()
        await console.open_place("Deliveries")
        await page.locator(".rowlink").first.click()
        attempts = page.locator("tbody tr")
        await expect(attempts).to_have_count(1)
        await expect(attempts).to_contain_text("500")
        await page.get_by_role("button", name="Send again now").click()
        await expect(page.locator(".facts .badge").first).to_have_text("delivered")
        await expect(attempts).to_have_count(2)
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1


async def test_a_key_is_made_with_scopes_and_revoked(gateway: GatewayProcess, console: Console) -> None:
    """The new key is shown once and does what its scopes say; the page does not revoke its own."""
    page = console.page
    await console.enter(gateway)
    await console.open_place("Keys")
    await page.get_by_label("Name").fill("dashboard")
    await page.get_by_role("button", name="Create").click()
    key = await page.locator(".secret code").inner_text()
    await page.get_by_role("button", name="I have stored it").click()
    entry = page.locator('[data-key="dashboard"]')
    await expect(entry).to_contain_text("read")
    async with gateway.http() as session:
        headers = {"Authorization": f"Bearer {key}"}
        async with session.get("/accounts/me", headers=headers) as answer:
            assert answer.status == 200
        await entry.get_by_role("button", name="Revoke").click()
        await entry.get_by_role("button", name="Revoke now").click()
        await expect(entry).to_have_count(0)
        async with session.get("/accounts/me", headers=headers) as answer:
            assert answer.status == 401
    await expect(page.locator('[data-key="default"]').get_by_role("button")).to_have_count(0)


async def test_a_schedule_is_added_paused_run_and_removed(gateway: GatewayProcess, console: Console) -> None:
    """A wrong time is explained and keeps what was typed; a time is that of the zone in the form."""
    page, year = console.page, datetime.now(UTC).year + 1
    await console.enter(gateway)
    await console.open_place("Schedules")
    form = page.get_by_role("form", name="Add a schedule")
    await form.get_by_role("textbox", name="Conversation").fill("reports")
    await form.get_by_role("textbox", name="Text").fill("!echo the report")
    await form.get_by_role("combobox", name="When").select_option("at")
    await form.get_by_role("textbox", name="Time", exact=True).fill("tomorrow")
    await form.get_by_role("textbox", name="Time zone").fill("Asia/Kathmandu")
    await form.get_by_role("button", name="Add").click()
    await expect(form.get_by_role("alert")).to_contain_text("write it as")
    await expect(form.get_by_role("textbox", name="Text")).to_have_value("!echo the report")
    await form.get_by_role("textbox", name="Time", exact=True).fill(f"{year}-01-31 09:00")
    await form.get_by_role("button", name="Add").click()
    entry = page.locator("[data-schedule]")
    await expect(entry).to_contain_text("the report")
    async with gateway.http() as session, session.get("/accounts/me/schedules") as answer:
        (schedule,) = (await answer.json())["items"]
    assert schedule["next_at"].startswith(f"{year}-01-31T03:15:00")
    await entry.get_by_role("button", name="Pause").click()
    await entry.get_by_role("button", name="Resume").click()
    await entry.get_by_role("button", name="Run now").click()
    await expect(entry).to_contain_text("Started.")
    await entry.get_by_role("button", name="Remove").click()
    await entry.get_by_role("button", name="Confirm removal").click()
    await expect(entry).to_have_count(0)
