"""The image's desktop: people see the display that the tool computer uses, by a link that expires."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

import docker_engine
from delivery.database.clock import utc_now
from docker_rig import engine_rig
from gateway.accounts.view_links import ViewLinks
from gateway.tools.screens.computer import computer
from gateway.tools.tool import InvalidArguments, ToolContext
from sandbox.config import SandboxConfig
from sandbox.model import ExecRequest, Network
from sandbox.port import Sandbox
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import all_rigs
from tool_contexts import make_tool_context

LINKS = ViewLinks(keys=(b"k" * 32,), public_url="https://bots.example")
PUBLISHED = 8080
LANGUAGES = ("ar", "el", "he", "hi", "ja", "ko", "ru", "th", "zh-cn", "zh-tw", "und-zsye")
"""Languages of fontconfig, one for each script; the last is emoji."""


def make_context(rig: ProviderRig, sandbox: Sandbox) -> ToolContext:
    """Return a context whose gateway makes links."""
    config = SandboxConfig.model_validate(
        {"provider": rig.plugin.name, "persistent": True, "runtimes": ["bash", "computer"]}
    )
    context = make_tool_context(config, sandbox, rig)
    cast("Any", context.environment_resolver).view_links = LINKS
    return replace(context, turn=cast("Any", SimpleNamespace(account="acc_1")))


@asynccontextmanager
async def open_desktop(directory: Path) -> AsyncIterator[tuple[ToolContext, Sandbox]]:
    """Open a sandbox of the image that publishes the desktop's port."""
    network = docker_engine.open_network(docker_engine.shared_engine())
    rig = engine_rig("desktop", directory, network=network, ports=(PUBLISHED,))
    async with rig.open() as provider:
        spec = rig.spec(network=Network.ALLOW_ALL, persistent=True, memory_mb=1024, pids=1024)
        sandbox = await provider.create(spec)
        yield make_context(rig, sandbox), sandbox
        await provider.destroy(sandbox.id)


@pytest.mark.skipif(
    not os.environ.get("DOVECOTE_TEST_IMAGE"), reason="no image with a desktop (images/sandbox/test.sh)"
)
async def test_people_see_the_display_that_the_docker_sandbox_uses(tmp_path: Path) -> None:
    """The link is for this sandbox and expires; its port has the page and the screen's VNC."""
    async with open_desktop(tmp_path) as (context, sandbox):
        begun = await computer.run(context, {"action": "launch", "command": "stterm -T Notes"}, "key_1")
        assert begun.ok, begun.content
        made = await computer.run(context, {"action": "live_view", "minutes": 5}, "key_2")
        assert made.ok, made.content
        link = LINKS.verify(str(made.detail["url"]).split("/")[4], now=utc_now())
        assert link is not None
        assert (link.account, link.port) == ("acc_1", PUBLISHED)
        assert (
            LINKS.verify(str(made.detail["url"]).split("/")[4], now=utc_now() + timedelta(minutes=6)) is None
        )
        url = await sandbox.expose(PUBLISHED)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/vnc.html") as page:
                assert "noVNC" in await page.text()
            async with session.ws_connect(f"{url}/websockify", protocols=("binary",)) as screen:
                assert (await screen.receive_bytes(timeout=60)).startswith(b"RFB 003")
        moved = await computer.run(context, {"action": "move", "x": 9, "y": 9}, "key_3")
        assert "pointer: 9,9" in moved.content


@pytest.mark.skipif(
    not os.environ.get("DOVECOTE_TEST_IMAGE"), reason="no image with a desktop (images/sandbox/test.sh)"
)
async def test_the_screen_has_the_letters_of_every_common_script(tmp_path: Path) -> None:
    """A script without a font is boxes in screenshots, which neither a model nor a person can read."""
    find = 'for one in {}; do test -n "$(fc-list :lang=$one family)" || echo $one; done'
    async with open_desktop(tmp_path) as (_, sandbox):
        missing = await sandbox.run(ExecRequest(script=find.format(" ".join(LANGUAGES))))
    assert (missing.exit_code, missing.stdout) == (0, b"")


async def test_a_provider_without_ports_has_no_live_view(tmp_path: Path) -> None:
    """The host reaches no port of a sandbox: the result says what to do instead, and nothing is started."""
    nowhere = cast("Sandbox", SimpleNamespace())
    context = make_context(all_rigs()["host-rlimits"](tmp_path), nowhere)
    refused = await computer.run(context, {"action": "live_view"}, "key_1")
    assert (refused.ok, "send a screenshot" in refused.content) == (False, True)
    for minutes in (0, 1441, "60"):
        with pytest.raises(InvalidArguments, match="minutes must be"):
            await computer.run(context, {"action": "live_view", "minutes": minutes}, "key_2")
