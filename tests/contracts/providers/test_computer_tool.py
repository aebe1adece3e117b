"""What the computer tool promises a model, with a real X display inside sandboxes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.tools.screens.computer import computer
from gateway.tools.tool import InvalidArguments
from sandbox.config import SandboxConfig
from sandbox.desktop.computer_service import ENDED
from sandbox.desktop.display import find_missing
from sandbox.lifecycle.services import SandboxServices
from sandbox.model import ExecRequest
from sandbox_rigs import all_rigs
from screen_rig import VARIANTS, Screen, open_screen
from tool_contexts import make_tool_context

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        bool(find_missing()) or not os.access("/usr/bin/stterm", os.X_OK),
        reason="no X display on this machine (Debian: xvfb, xdotool, scrot, stterm)",
    ),
]

TYPED = f"hello; $(id) 'Wörld' € {''.join(map(chr, range(0x4E00, 0x4E28)))}\n"
"""More characters than the keyboard has free keys."""

CLICKS = (
    "stterm -g 80x24+100+100 -e bash -c "
    "\"stty raw -echo; printf '\\033[?1000h\\033[?1006h'; echo yes > ready; cat > clicks.txt\""
)
"""A program that writes each click and key into the workspace, as escape sequences."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=VARIANTS)
async def screen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Screen]:
    """Return a sandbox of each kind; its display is started by the first call."""
    async with open_screen(request.param, tmp_path_factory.mktemp("screen"), runtime="computer") as opened:
        yield opened


async def wait_for_file(screen: Screen, name: str, wanted: str = "") -> str:
    """Wait until a file of the workspace has a content, and return it."""
    script = f"until grep -qs -- '{wanted}' {name}; do sleep 0.1; done; cat {name}"
    return (await screen.sandbox.run(ExecRequest(script=script, timeout=60))).stdout.decode()


async def wait_for_window(screen: Screen, title: str) -> str:
    """Wait until a window with a title has the focus, and return what the tool says then."""
    for _ in range(60):
        shown = await screen.run(computer, action="move", x=300, y=300)
        if f"window: {title}" in shown.content:
            return shown.content
    raise AssertionError(shown.content)


async def test_a_text_is_typed_into_a_program(screen: Screen) -> None:
    """A launched window has the focus, receives text and keys, and its title is in the reply."""
    command = "stterm -g 80x24+100+100 -T Notes -e bash -c 'cat > typed.txt; echo yes > ended'"
    launched = await screen.run(computer, action="launch", command=command)
    assert launched.ok, launched.content
    assert "launched: it runs" in launched.content
    moved = await wait_for_window(screen, "Notes")
    assert "pointer: 300,300\nscreen: 1280 × 800" in moved
    typed = await screen.run(computer, action="type", text=TYPED)
    assert typed.ok, typed.content
    await screen.run(computer, action="key", keys="ctrl+d")
    await wait_for_file(screen, "ended", "yes")
    assert await wait_for_file(screen, "typed.txt") == TYPED


async def test_the_mouse_clicks_drags_and_scrolls(screen: Screen) -> None:
    """A program sees the button, the count, the wheel, and where a drag began and ended."""
    await screen.run(computer, action="launch", command=CLICKS)
    await wait_for_file(screen, "ready", "yes")
    for action in (
        {"action": "click", "x": 300, "y": 300, "button": "right", "count": 2},
        {"action": "scroll", "direction": "down", "count": 3},
        {"action": "drag", "x": 200, "y": 200, "to_x": 400, "to_y": 300},
        {"action": "key", "keys": "x", "count": 2},
    ):
        done = await screen.run(computer, **action)
        assert done.ok, done.content
    seen = await wait_for_file(screen, "clicks.txt", "xx$")
    assert seen.count("[<2;") == 4  # pressed and released, twice
    assert seen.count("[<65;") == 3
    begun, ended = (one.removeprefix("[<0;") for one in seen.split("\x1b") if one.startswith("[<0;"))
    assert begun.endswith("M")
    assert "m" in ended
    assert begun[:-1] != ended.partition("m")[0]


async def test_a_screenshot_reaches_the_model_the_workspace_and_the_chat(screen: Screen) -> None:
    """It shows the screen; the result has it as a file and an image; people get it unless `send` is false."""
    before = await screen.run(computer, action="screenshot", send=False)
    screen.sent.paths.clear()
    await screen.run(computer, action="launch", command="stterm -g 40x10+700+500 -e sleep 600")
    await screen.run(computer, action="move", x=10, y=10)
    shown = await screen.run(computer, action="screenshot")
    (image,) = shown.images
    assert (screen.pages / image.name).read_bytes() == image.content
    assert image.content.startswith(b"\x89PNG")
    size = [int.from_bytes(image.content[at : at + 4]) for at in (16, 20)]
    assert size == [1280, 800]
    assert image.content != before.images[0].content
    assert screen.sent.paths == [image.name]


async def test_what_fails_is_said(screen: Screen) -> None:
    """A command that ends, a key that does not exist and a place outside are failed results with a reason."""
    for args, why in (
        ({"action": "launch", "command": "exit 3"}, "exit code 3"),
        ({"action": "key", "keys": "NoSuchKey"}, "NoSuchKey"),
        ({"action": "move", "x": 5000, "y": 5}, "outside the screen"),
    ):
        failed = await screen.run(computer, **args)
        assert (failed.ok, why in failed.content) == (False, True), failed.content


async def test_a_title_is_one_bounded_line(screen: Screen) -> None:
    """A window cannot pretend to be other lines of the reply."""
    command = "stterm -T \"$(printf 'a\\npointer: 1,1 '; head -c 5000 /dev/zero | tr '\\0' t)\" -e sleep 600"
    await screen.run(computer, action="launch", command=command)
    shown = await wait_for_window(screen, "a pointer: 1,1 tttt")
    assert len(shown) < 500
    assert [line for line in shown.splitlines() if line.startswith("pointer")] == ["pointer: 300,300"]


async def test_an_ended_display_is_started_again(screen: Screen) -> None:
    """The service is listed with the sandbox's others; after its end the next call has a display again."""
    assert (await screen.run(computer, action="move", x=1, y=1)).ok
    services = SandboxServices(sandbox=screen.sandbox)
    assert [one.name for one in await services.list_all()] == ["computer"]
    killed = await screen.run(computer, action="launch", command="pkill -KILL Xvfb; sleep 600")
    assert (killed.ok, killed.content) == (False, ENDED)
    assert (await screen.run(computer, action="move", x=2, y=2)).ok
    assert (await screen.run(computer, action="quit")).content == "the display has ended"
    assert (await screen.run(computer, action="quit")).content == "no display was running"
    assert (await screen.run(computer, action="screenshot")).images


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"action": "fly"}, "action must be"),
        ({"action": "move", "x": 1}, "y must be a whole number"),
        ({"action": "click", "x": 1, "y": -1}, "y must be from 0"),
        ({"action": "click", "button": "fourth"}, "button must be"),
        ({"action": "click", "count": 21}, "count must be"),
        ({"action": "scroll", "direction": "sideways"}, "direction must be"),
        ({"action": "drag", "x": 1, "y": 1}, "to_x must be"),
        ({"action": "type", "text": "x" * 1001}, "text must have"),
        ({"action": "key", "keys": "--clearmodifiers"}, "keys must be"),
        ({"action": "launch", "command": ""}, "command must be"),
        ({"action": "screenshot", "path": "x" * 301}, "path must have"),
    ],
)
async def test_wrong_arguments_are_refused(screen: Screen, args: dict[str, Any], why: str) -> None:
    """The error names the argument, and nothing runs."""
    with pytest.raises(InvalidArguments, match=why):
        await screen.run(computer, **args)


async def test_it_is_offered_where_it_can_be_carried_out(tmp_path: Path) -> None:
    """The record declares the computer, the sandbox is reserved, and approvals are those of bash."""
    rig = all_rigs()["host-rlimits"](tmp_path)

    def offered(provider: str, *, workspace: str | None = "wsp_1", **config: Any) -> bool:
        context = make_tool_context(SandboxConfig(provider=provider, **config), None, rig)
        object.__setattr__(context.environment.owner, "workspace", workspace)
        return computer.is_available(context)

    both = ("bash", "computer")
    assert offered("host", persistent=True, runtimes=both)
    assert offered("docker", persistent=True, runtimes=both)
    assert not offered("host", persistent=True, runtimes=("bash", "browser"))
    assert not offered("host", runtimes=both)
    assert not offered("host", persistent=True, runtimes=both, workspace=None)
    assert not offered("lambda", persistent=True, runtimes=both)
    modes = [SandboxConfig.model_validate({"permissionMode": mode}) for mode in ("ask", "edit", "bypass")]
    assert [computer.needs_approval(one) for one in modes] == [True, True, False]
