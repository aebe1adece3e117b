"""What the browser tool promises a model, with a real Chromium inside sandboxes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.tools.screens.browser import browser
from gateway.tools.tool import InvalidArguments
from sandbox.config import SandboxConfig
from sandbox.desktop.browser import PROGRAMS
from sandbox.desktop.cdp import BrowserError, BrowserGone, CdpConnection, PageChanged
from sandbox.lifecycle.services import SandboxServices
from sandbox_rigs import all_rigs
from screen_rig import VARIANTS, Screen, open_screen, serve_pages
from tool_contexts import make_tool_context

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        not any(Path(one).exists() for one in PROGRAMS),
        reason="no Chromium on this machine (Debian: chromium)",
    ),
]

ENDED = "the page did not answer within 4 s, so the browser was ended: open another page"
REFUSING = """
import json, os
content = b""
while not content.endswith(b"\\0"):
    content += os.read(3, 65536)
answer = {"id": json.loads(content[:-1])["id"], "error": {"message": %s}}
os.write(4, json.dumps(answer).encode() + b"\\0")
os.read(3, 1)
"""
FORM = """<title>Order</title><h1>Order</h1>
<form id=f><label>Name <input id=name></label> <input type=password placeholder=Secret>
<select id=color><option>Red<option>Blue</select> <label><input type=checkbox id=agree> Agree</label>
<button>Send</button></form><p id=out></p>
<script>f.onsubmit = event => { event.preventDefault();
  const values = [...document.querySelectorAll("#name,#color")].map(one => one.value);
  out.textContent = event.isTrusted + " " + values + " " + agree.checked + " "
    + document.querySelector("[type=password]").value.length }</script>"""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=VARIANTS)
async def screen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Screen]:
    """Return a sandbox of each kind; its browser is started by the first call."""
    async with open_screen(request.param, tmp_path_factory.mktemp("screen"), runtime="browser") as opened:
        yield opened


async def test_a_form_is_filled_in_and_sent(screen: Screen) -> None:
    """Elements are named by ref, selector or text; clicks are a person's; secrets are not shown again."""
    opened = await screen.run(browser, action="open", url=screen.write_page("form.html", FORM))
    assert opened.ok, opened.content
    assert 'heading 1 "Order"' in opened.content
    ref = int(opened.content.partition('textbox "Name" [ref ')[2].partition("]")[0])
    await screen.run(browser, action="type", ref=ref, value="Änn")
    await screen.run(browser, action="type", selector="[type=password]", value="hunter2")
    await screen.run(browser, action="type", selector="#color", value="Blue")
    await screen.run(browser, action="click", text="agree")
    sent = await screen.run(browser, action="click", text="Send")
    assert "true Änn,Blue true 7" in sent.content
    assert "hunter2" not in sent.content
    wrong = await screen.run(browser, action="type", selector="#color", value="Green")
    assert (wrong.ok, "no option 'Green'" in wrong.content) == (False, True)


async def test_a_screenshot_reaches_the_model_the_workspace_and_the_chat(screen: Screen) -> None:
    """It is a file and an image of the result; people get it unless the call says otherwise."""
    await screen.run(
        browser, action="open", url=screen.write_page("tall.html", "<p style=height:2000px>Tall")
    )
    screen.sent.paths.clear()
    shown = await screen.run(browser, action="screenshot")
    (image,) = shown.images
    assert (screen.pages / image.name).read_bytes() == image.content
    assert image.content.startswith(b"\x89PNG")
    assert screen.sent.paths == [image.name]
    whole = await screen.run(browser, action="screenshot", full_page=True, path="shots/tall.png", send=False)
    assert whole.images[0].name == "shots/tall.png"
    height = [int.from_bytes(one.content[20:24]) for one in (image, whole.images[0])]
    assert height[1] > 2 * height[0] - 200
    assert len(screen.sent.paths) == 1
    screen.sent.most = 1
    refused = await screen.run(browser, action="screenshot")
    assert refused.images
    assert "too many files" in refused.content


async def test_a_huge_page_is_cut(screen: Screen) -> None:
    """An outline and a text have their limits; more of the text is read from an offset."""
    script = (
        "for (let at = 0; at < 8000; at++)"
        " document.body.append(Object.assign(document.createElement('p'), {textContent: 'line ' + at}))"
    )
    huge = await screen.run(
        browser, action="open", url=screen.write_page("huge.html", f"<body><script>{script}</script>")
    )
    assert "line 0" in huge.content
    assert len(huge.content) < 35_000
    assert "there is more" in huge.content
    part = await screen.run(browser, action="read", text_only=True, offset=40_000)
    assert "line 4000\n" in part.content
    assert len(part.content) < 35_000


async def test_dialogs_of_a_hostile_page_are_closed(screen: Screen) -> None:
    """The model gets their texts; a page that opens them for ever is closed, and the next one opens."""
    page = "<button onclick=\"document.title = confirm('Sure?') + ' ' + prompt('Who?')\">Ask</button>"
    await screen.run(browser, action="open", url=screen.write_page("ask.html", page))
    asked = await screen.run(browser, action="click", text="Ask")
    assert "dialog: confirm 'Sure?' was dismissed" in asked.content
    assert "title: false null" in asked.content
    endless = screen.write_page("endless.html", "<script>while (true) alert('again')</script>")
    stuck = await screen.run_within(4, browser, action="open", url=endless)
    assert not stuck.ok
    assert "alert 'again' was accepted" in stuck.content
    assert (await screen.run(browser, action="open", url=screen.write_page("ok.html", "<h1>Fine"))).ok


async def test_a_page_cannot_replace_what_reads_it(screen: Screen) -> None:
    """Functions that the page overwrites are not used, and windows that it opens are bounded."""
    page = (
        "<title>Lie</title><h1>Truth</h1>"
        "<button onclick='for (let at = 0; at < 8; at++) window.open(`about:blank`)'>More"
        "</button><script>Element.prototype.getAttribute = document.querySelector = () => { throw 'no' };"
        "JSON.stringify = () => 'stolen'; globalThis.dovecote = {outline: () => ({text: 'stolen'})}</script>"
    )
    opened = await screen.run(browser, action="open", url=screen.write_page("lie.html", page))
    assert 'heading 1 "Truth"' in opened.content
    assert "stolen" not in opened.content
    clicked = await screen.run(browser, action="click", text="More")
    tabs = int(clicked.content.partition("tabs: ")[2].partition("\n")[0])
    assert 2 <= tabs <= 5
    shown = [await screen.run(browser, action="close_tab") for _ in range(tabs - 1)]
    assert 'heading 1 "Truth"' in shown[-1].content


async def test_a_busy_page_does_not_hold_the_browser(screen: Screen) -> None:
    """A script that never ends is said to be so, its tab is closed, and the browser goes on."""
    page = "<button onclick='while (true);'>Spin</button>"
    await screen.run(browser, action="open", url=screen.write_page("spin.html", page))
    spun = await screen.run_within(4, browser, action="click", text="Spin")
    assert (spun.ok, spun.content) == (False, ENDED)
    assert (await screen.run(browser, action="open", url=screen.write_page("ok.html", "<h1>Fine"))).ok


async def test_without_a_network_the_reason_is_given(screen: Screen) -> None:
    """An address that cannot be reached is a failed result with the browser's own words."""
    failed = await screen.run(browser, action="open", url="http://127.0.0.2:9/")
    assert (failed.ok, "net::ERR_" in failed.content) == (False, True)


async def test_a_killed_browser_is_started_again(screen: Screen) -> None:
    """A call after the end of the browser or of its service has a browser again."""
    assert (await screen.run(browser, action="open", url="about:blank")).ok
    services = SandboxServices(sandbox=screen.sandbox)
    assert [one.name for one in await services.list_all()] == ["browser"]
    assert (await screen.run(browser, action="quit")).content == "the browser has ended"
    assert (await screen.run(browser, action="quit")).content == "no browser was running"
    assert (await screen.run(browser, action="open", url="about:blank")).ok


@pytest.mark.parametrize(
    ("end", "reason"), [("kill -9 $$", "ended by signal 9"), ("exit 3", "with exit code 3")]
)
async def test_a_browser_that_ends_says_how(end: str, reason: str) -> None:
    """The error names the signal or the exit code."""
    program = ["/bin/bash", "-c", f"head -c 1 <&3; {end}"]
    connection = CdpConnection(program, os.environ, lambda _session, _event, _params: None)
    with pytest.raises(BrowserGone, match=reason):
        connection.call("Browser.getVersion", timeout=60.0)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Cannot find context with specified id", PageChanged),
        ("Inspected target navigated or closed", PageChanged),
        ("Not attached to an active page", PageChanged),
        ("Invalid parameters", BrowserError),
    ],
)
async def test_an_error_names_a_page_that_has_gone(message: str, kind: type[BrowserError]) -> None:
    """The answers for a page that gave way to another one differ from all other errors."""
    argv = [sys.executable, "-c", REFUSING % json.dumps(message)]
    connection = CdpConnection(argv, os.environ, lambda _session, _event, _params: None)
    with pytest.raises(BrowserError, match=message) as refused:
        connection.call("Runtime.evaluate", timeout=60)
    connection.close()
    assert type(refused.value) is kind


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"action": "open", "url": "javascript:alert(1)"}, "url must begin"),
        ({"action": "open", "url": "chrome://settings"}, "url must begin"),
        ({"action": "click"}, "name one element"),
        ({"action": "click", "ref": 1, "text": "both"}, "name one element"),
        ({"action": "press", "key": "F24"}, "key must be"),
        ({"action": "read", "offset": -1}, "offset must be"),
        ({"action": "fly"}, "action must be"),
    ],
)
async def test_wrong_arguments_are_refused(screen: Screen, args: dict[str, Any], why: str) -> None:
    """The error names the argument, and nothing runs."""
    with pytest.raises(InvalidArguments, match=why):
        await screen.run(browser, **args)


async def test_pages_of_a_server(tmp_path: Path) -> None:
    """A form is posted; a server that is silent or never ends its page blocks no call."""
    page = "<title>Post</title><form method=post><input name=who aria-label=Who></form>"
    with serve_pages({"/": page, "/endless": "<h1>Begun</h1>"}) as server:
        async with open_screen("host-plain", tmp_path, runtime="browser") as screen:
            assert (await screen.run(browser, action="open", url=f"{server.url}/")).ok
            posted = await screen.run(browser, action="type", text="Who", value="me", submit=True)
            assert "Thank you" in posted.content
            assert server.posted == ["who=me"]
            back = await screen.run(browser, action="back")
            assert "title: Post" in back.content
            silent = await screen.run_within(4, browser, action="open", url=f"{server.url}/silent")
            assert (silent.ok, "did not answer" in silent.content) == (False, True)
            endless = await screen.run_within(4, browser, action="open", url=f"{server.url}/endless")
            assert "still loading" in endless.content
            assert "Begun" in endless.content


async def test_it_is_offered_where_it_can_be_carried_out(tmp_path: Path) -> None:
    """The record declares the browser, the sandbox is reserved, and approvals are those of bash."""
    rig = all_rigs()["host-rlimits"](tmp_path)

    def offered(provider: str, *, workspace: str | None = "wsp_1", **config: Any) -> bool:
        context = make_tool_context(SandboxConfig(provider=provider, **config), None, rig)
        object.__setattr__(context.environment.owner, "workspace", workspace)
        return browser.is_available(context)

    both = ("bash", "browser")
    assert offered("host", persistent=True, runtimes=both)
    assert offered("docker", persistent=True, runtimes=both)
    assert not offered("host", persistent=True)
    assert not offered("host", runtimes=both)
    assert not offered("host", persistent=True, runtimes=both, workspace=None)
    assert not offered("lambda", persistent=True, runtimes=both)
    modes = [SandboxConfig.model_validate({"permissionMode": mode}) for mode in ("ask", "edit", "bypass")]
    assert [browser.needs_approval(one) for one in modes] == [True, True, False]
