"""Files at Slack: uploads that can be found again, and downloads that do not leak the token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from channels.errors import Ambiguous, ChannelError, NotPermitted, Rejected, Unreachable
from channels.message import File
from channels.port import Connection
from channels.slack import plugin
from channels.slack.simulator import Simulator
from channels.slack.simulator.api.scopes import ALL_SCOPES
from channels.testing.connections import open_connection
from channels.testing.memory_state import MemoryChannelState
from slack_connections import ROOM, thread_address

FILE = File(name="r.txt", media_type="text/plain", content=b"result", caption="<!here>")
LONG_AGO = datetime.now(UTC) - timedelta(hours=1)


async def test_a_file_goes_to_its_thread(simulator: Simulator, slack: Connection) -> None:
    """Upload is three steps; the last one names room and thread."""
    thread = thread_address("1767225600.000001")
    sent = await slack.sender.upload(thread, FILE, key="dlv_2.0")
    (post,) = simulator.messages()
    assert (post.thread, post.text, post.notified_targets) == (thread.thread, "<!here>", [])
    assert simulator.world.contents[sent.platform_id] == b"result"


@pytest.mark.parametrize("carried_out", [True, False])
async def test_an_ambiguous_upload_is_found(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState, carried_out: bool
) -> None:
    """Any replica can find out whether the file was shared: its id was stored beforehand."""
    await simulator.cut(method="files.completeUploadExternal", after=carried_out)
    with pytest.raises(Ambiguous):
        await slack.sender.upload(ROOM, FILE, key="dlv_2.0")
    async with open_connection(plugin, simulator.settings(), notes) as other:
        found = await other.sender.find(ROOM, "dlv_2.0", since=LONG_AGO)
    assert (found is not None) is carried_out
    assert len(simulator.messages()) == int(carried_out)


async def test_a_refused_upload_of_bytes_begins_again(simulator: Simulator, slack: Connection) -> None:
    """A 403 concerns the URL that Slack gave, not the token: nothing was sent, and the next URL works."""
    simulator.server.upload_statuses.append(403)
    with pytest.raises(Unreachable):
        await slack.sender.upload(ROOM, FILE, key="dlv_2.0")
    await slack.sender.upload(ROOM, FILE, key="dlv_2.0")
    assert len(simulator.messages()) == 1


async def test_an_upload_that_was_cut_short_is_not_shared(simulator: Simulator, slack: Connection) -> None:
    """Slack checks the size, and an incomplete file is not visible."""
    await simulator.fail("internal_error", method="files.getUploadURLExternal")
    with pytest.raises(Ambiguous):
        await slack.sender.upload(ROOM, FILE, key="dlv_2.0")
    assert await slack.sender.find(ROOM, "dlv_2.0", since=LONG_AGO) is None
    assert simulator.messages() == []


async def test_a_new_file_without_rooms_may_still_be_shared(simulator: Simulator, slack: Connection) -> None:
    """Slack names the rooms of a file some time after it was shared; until then nothing is known."""
    sent = await slack.sender.upload(ROOM, FILE, key="dlv_2.0")
    file = simulator.world.files[sent.platform_id]
    del file["shares"]
    file["created"] = datetime.now(UTC).timestamp()
    with pytest.raises(Unreachable):
        await slack.sender.find(ROOM, "dlv_2.0", since=LONG_AGO)
    file["created"] -= 600
    assert await slack.sender.find(ROOM, "dlv_2.0", since=LONG_AGO) is None
    await simulator.fail("access_denied", method="files.info")
    with pytest.raises(ChannelError):
        await slack.sender.find(ROOM, "dlv_2.0", since=LONG_AGO)


async def test_a_file_that_is_empty_or_too_large_is_refused_here(slack: Connection) -> None:
    """What Slack would refuse, or we would not hold, is refused before anything is sent."""
    for content in (b"", bytes(50_000_001)):
        file = File(name="r.bin", media_type="application/octet-stream", content=content)
        with pytest.raises(Rejected):
            await slack.sender.upload(ROOM, file, key="dlv_2.0")


@pytest.mark.parametrize(
    "ref",
    [
        "http://127.0.0.2:9/x",
        "https://example.org/x",
        "http://a@127.0.0.1/x",
        "http://files.slack.com/x",
        "https://files.slack.com.example.org/x",
        "https://notslack.com/x",
        "http://[::1/x",
    ],
)
async def test_the_token_goes_to_slack_only(slack: Connection, ref: str) -> None:
    """A file's address at another host, or without TLS, is refused before anything is sent."""
    with pytest.raises(Rejected):
        [chunk async for chunk in slack.sender.download(ref)]


async def test_a_missing_scope_names_itself(simulator: Simulator, slack: Connection) -> None:
    """The operator gets the name of the scope that an upload lacks."""
    await simulator.grant(ALL_SCOPES - {"files:write"})
    with pytest.raises(NotPermitted) as caught:
        await slack.sender.upload(ROOM, FILE, key="dlv_2.0")
    assert caught.value.permission == "files:write"


async def test_a_download_that_wants_a_login_names_the_scope(simulator: Simulator, slack: Connection) -> None:
    """Slack sends a token without files:read to its login page, which is no file."""
    ts = await simulator.send_file("C0ROOM", b"notes", name="n.txt", media_type="text/plain")
    post = simulator.world.get_post("C0ROOM", ts)
    assert post is not None
    await simulator.grant(ALL_SCOPES - {"files:read"})
    with pytest.raises(NotPermitted) as caught:
        [part async for part in slack.sender.download(post.raw["files"][0]["url_private"])]
    assert caught.value.permission == "files:read"
