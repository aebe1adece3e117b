"""Install a Slack app of a running gateway in a workspace, and wait for its bot there."""

from __future__ import annotations

from http.cookies import SimpleCookie

import aiohttp

from channels.slack.simulator import Simulator
from gateway_process import GatewayProcess


async def install(platform: Simulator, process: GatewayProcess, team: str) -> None:
    """Install the app in a workspace, as a person does with a browser."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as browser:
        async with browser.get(f"{process.url}/slack/install") as page:
            (state,) = SimpleCookie(page.headers["Set-Cookie"]).values()
        given = {"code": platform.server.installations.approve(team), "state": state.value}
        cookie = {"Cookie": f"{state.key}={state.value}"}
        async with browser.get(f"{process.url}/slack/oauth_redirect", params=given, headers=cookie) as done:
            assert done.status == 200, await done.text()


async def wait_for_answer(platform: Simulator, room: str, text: str) -> None:
    """Wait until the bot has said a text in a room."""
    await platform.wait_until(lambda: any(text in post.text for post in platform.messages(room)), seconds=60)
