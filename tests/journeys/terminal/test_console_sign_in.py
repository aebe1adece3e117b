"""People sign in to the console at a provider that was not written here, in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from console_driver import CHROMIUM, Console, load, open_console
from gateway.sign_in.oidc_sign_in import CALLBACK_PATH
from gateway_process import GatewayProcess, reserve_port
from gateway_process import gateway as running
from oidc_provider_process import ProviderProcess, provider_process

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, which draws the console"),
    pytest.mark.timeout(180),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[ProviderProcess]:
    """The provider with Ada, who has access, and Eve, who has none."""
    async with provider_process() as process:
        await process.set_user("ada", groups=["ops"], preferred_username="ada")
        await process.set_user("eve", groups=["others"])
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, provider: ProviderProcess
) -> AsyncIterator[GatewayProcess]:
    """A gateway whose client is registered at the provider."""
    port = reserve_port()
    public_url = f"http://127.0.0.1:{port}"
    client, secret = await provider.register(f"{public_url}{CALLBACK_PATH}")
    env = {
        "DOVECOTE_PUBLIC_URL": public_url,
        "DOVECOTE_OIDC__ISSUER": provider.url,
        "DOVECOTE_OIDC__CLIENT_ID": client,
        "DOVECOTE_OIDC__CLIENT_SECRET": secret,
        "DOVECOTE_OIDC__LABEL": "Example",
        "DOVECOTE_OIDC__END_PROVIDER_SESSION": "true",
        "DOVECOTE_OIDC__ACCESS__OPS__SCOPES": "read,chat",
    }
    async with running(tmp_path_factory.mktemp("sign-in") / "data", env=env, port=port) as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, gateway: GatewayProcess) -> AsyncIterator[Page]:
    """The console before anybody signed in; the provider's pages do without their style sheet."""
    async with open_console(browser) as view:
        await view.page.route("https://**", lambda route: route.abort())
        await load(view.page, gateway.url)
        await view.page.get_by_role("link", name="Sign in with Example").click()
        await expect(view.page.get_by_role("heading", name="Authorize Client")).to_be_visible()
        yield view.page


async def sign_in(page: Page, subject: str) -> None:
    """Give the provider a name, as its form asks."""
    await page.get_by_placeholder("sub").fill(subject)
    await page.get_by_role("button", name="Authorize").click()


async def test_a_person_signs_in_works_and_leaves_both(gateway: GatewayProcess, page: Page) -> None:
    """The form of the provider leads home; *Leave* ends the key, and the provider's session at its page."""
    await sign_in(page, "ada")
    await expect(page.get_by_role("heading", name="Home")).to_be_visible()
    await Console(page=page).start_conversation("!echo from the office")
    await expect(page.locator('[data-role="assistant"]').last).to_contain_text("from the office")
    key = await page.evaluate("sessionStorage.getItem('dovecote.key')")
    await page.get_by_role("button", name="Leave").click()
    await expect(page.get_by_role("heading", name="End Session")).to_be_visible()
    await page.get_by_role("button", name="End session").click()
    await expect(page.get_by_label("API key")).to_be_visible()
    headers = {"Authorization": f"Bearer {key}"}
    async with gateway.http() as session, session.get("/accounts/me", headers=headers) as answer:
        assert answer.status == 401


async def test_a_person_whose_key_is_revoked_must_sign_in_again(gateway: GatewayProcess, page: Page) -> None:
    """An administrator ends a session at once; the page says so and offers the sign-in again."""
    await sign_in(page, "ada")
    await expect(page.get_by_role("heading", name="Home")).to_be_visible()
    mine = await page.evaluate("sessionStorage.getItem('dovecote.author')")
    async with gateway.http() as session, session.delete(f"/accounts/me/keys/{mine}") as answer:
        assert answer.status == 204
    await expect(page.get_by_role("alert")).to_contain_text("no longer accepted")
    await expect(page.get_by_role("link", name="Sign in with Example")).to_be_visible()


async def test_who_is_not_in_the_group_or_refuses_stays_outside(gateway: GatewayProcess, page: Page) -> None:
    """Each reads the reason on the page, and can try again."""
    await sign_in(page, "eve")
    await expect(page.get_by_role("alert")).to_contain_text("no access to this gateway")
    await page.get_by_role("link", name="Sign in with Example").click()
    await page.get_by_role("button", name="Deny").click()
    await expect(page.get_by_role("alert")).to_contain_text("did not sign you in")
    assert page.url.startswith(gateway.url)
