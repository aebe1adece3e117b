"""An app that several workspaces install: pages, routing, uninstallation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

import pytest

from channels.errors import Undeliverable
from channels.message import Button, ButtonPress, Command, File, Message, PermissionsChanged, Reply
from channels.port import ChannelInstallation, Connection
from channels.slack import plugin
from channels.slack.installations import ChannelStateStore
from channels.slack.simulator import Simulator
from channels.slack.simulator.installations import CLIENT_SECRET
from channels.slack.simulator.world import BOT_USER, Room
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelSecrets, MemoryChannelState
from slack_connections import EAST, ROOMS, WEST, install, make_reply, show, wait_for_update

GRID = "E0GRID"


async def test_the_install_page_leads_to_slack(simulator: Simulator, app: Connection) -> None:
    """The page names the app, its scopes and a state."""
    page = await show(app, "install")
    link = page.body.partition('<a href="')[2].partition('"')[0].replace("&amp;", "&")
    given = parse_qs(urlsplit(link).query)
    assert page.status == 200
    assert link.startswith(f"{simulator.url}/oauth/v2/authorize?")
    assert (given["client_id"], "chat:write" in given["scope"][0]) == (["1234.5678"], True)
    assert {"HttpOnly", "Secure"} <= {part.strip() for part in page.headers["Set-Cookie"].split(";")}


async def test_each_workspace_is_answered_by_its_own_bot(
    simulator: Simulator, app: Connection, notes: MemoryChannelState
) -> None:
    """Messages, files, commands and buttons of two workspaces are answered with their own tokens."""
    for team in (EAST, WEST):
        assert (await install(app, simulator, team)).status == 200
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        for room in ROOMS:
            await simulator.send_file(room, b"content", name="a.txt", media_type="text/plain", text=room)
        messages = [update for update in await recorder.wait(2) if isinstance(update, Message)]
        for message in messages:
            address = message.address
            sent = await app.sender.send(address, Reply(text=message.text, key=f"dlv_{address.room}.0"))
            found = await app.sender.find(
                address, f"dlv_{address.room}.0", since=datetime.now(UTC) - timedelta(hours=1)
            )
            assert (found, address.extras["team"]) == (sent, ROOMS[address.room])
            chunks = [chunk async for chunk in app.sender.download(message.attachments[0].ref)]
            assert b"".join(chunks) == b"content"
            await app.sender.upload(
                address, File(name="b.txt", content=b"b", media_type="text/plain"), key="u"
            )
        await simulator.slash("C0WEST", "status")
        command = await wait_for_update(recorder, Command)
        asking = make_reply("May I?", buttons=(Button(label="Yes", data="y", prompt="Why?"),))
        question = await app.sender.send(messages[1].address, asking)
        await simulator.press("C0WEST", question.platform_id, "y")
        await simulator.wait_until(lambda: bool(simulator.open_modals()))
        await simulator.submit("because")
        pressed = await wait_for_update(recorder, ButtonPress)
    assert [post.room for post in simulator.messages()] == ["C0EAST", "C0EAST", "C0WEST", "C0WEST", "C0WEST"]
    assert command.address.extras == pressed.address.extras == {"team": WEST}
    assert pressed.comment == "because"


async def test_the_mentioned_bot_answers_in_a_channel_that_workspaces_share(
    simulator: Simulator, app: Connection
) -> None:
    """Slack sends one event for both bots of the app, for whichever of their workspaces."""
    simulator.server.installations.bot_users[WEST] = "U0WESTBOT"
    for team in (EAST, WEST):
        await install(app, simulator, team)
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        asked = await simulator.say("C0EAST", "<@U0WESTBOT> hello")
        await simulator.edit("C0EAST", asked, "<@U0WESTBOT> hello there")
        await simulator.say("C0EAST", f"<@{BOT_USER}> and you?")
        await simulator.say("C0EAST", "<@U0ADA> nobody")
        await recorder.wait(5)  # the one that mentions the usual bot is an app_mention too
    received = {update.key: update for update in recorder.updates if isinstance(update, Message)}
    assert [(one.text, one.mentions_bot, one.address.extras["team"]) for one in received.values()] == [
        ("hello", True, WEST),
        ("hello there", True, WEST),
        ("and you?", True, EAST),
        ("@U0ADA nobody", False, EAST),
    ]


async def test_a_shared_thread_goes_on_with_the_bot_that_answers_in_it(
    simulator: Simulator, app: Connection, notes: MemoryChannelState
) -> None:
    """A later message without a mention is for that bot, also at another replica; other threads are not."""
    simulator.server.installations.bot_users[WEST] = "U0WESTBOT"
    for team in (EAST, WEST):
        await install(app, simulator, team)
    simulator.world.room("C0EAST").shared_with.add(WEST)
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        asked = await simulator.say("C0EAST", "<@U0WESTBOT> hello")
        (question,) = await recorder.wait(1)
        assert isinstance(question, Message)
        async with open_connection(plugin, simulator.app_settings(), notes) as replica:
            await replica.sender.send(question.address, make_reply("hi"))
        await simulator.say("C0EAST", "and today?", thread=asked)
        await simulator.say("C0EAST", "something else", thread=await simulator.say("C0EAST", "I am here"))
        await recorder.wait(4)
    received = {one.text: one.address.extras["team"] for one in recorder.updates if isinstance(one, Message)}
    assert received == {"hello": WEST, "and today?": WEST, "I am here": EAST, "something else": EAST}


async def test_a_workspace_without_the_app_is_ignored(simulator: Simulator, app: Connection) -> None:
    """Its events are acknowledged and have no effect, and nothing can be sent there."""
    await install(app, simulator, EAST)
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        await simulator.say("C0WEST", "not for us")
        await simulator.slash("C0WEST", "status")
        await simulator.say("C0EAST", "for us")
        (message,) = await recorder.wait(1)
        await simulator.wait_until_acknowledged()
    assert isinstance(message, Message)
    assert message.text == "for us"
    elsewhere = message.address.__class__(channel="chn_contract", room="C0WEST", extras={"team": WEST})
    with pytest.raises(Undeliverable, match="not installed in workspace T0WEST"):
        await app.sender.send(elsewhere, make_reply("hello"))


async def test_an_uninstalled_workspace_is_deleted(
    simulator: Simulator, app: Connection, notes: MemoryChannelState
) -> None:
    """Its token is deleted; the other workspaces go on, and it can be installed again."""
    for team in (EAST, WEST):
        await install(app, simulator, team)
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        await simulator.uninstall(WEST)
        await simulator.say("C0WEST", "too late")
        await simulator.say("C0EAST", "still here")
        await recorder.wait(1)
        assert isinstance(notes.secrets, MemoryChannelSecrets)
        assert [name for name in notes.secrets.values if "installation" in name] == ["installation:T0EAST"]
        await install(app, simulator, WEST)
        await simulator.say("C0WEST", "back again")
        await recorder.wait(2)
    texts = [update.text for update in recorder.updates if isinstance(update, Message)]
    assert texts == ["still here", "back again"]


async def test_installations_are_listed_and_uninstalled(simulator: Simulator, app: Connection) -> None:
    """They are paged by id, without tokens; an uninstalled one loses its token at Slack as well."""
    for team in (WEST, GRID, EAST):
        await install(app, simulator, team)
    assert app.installations is not None
    of = app.installations
    listed = await of.list()
    assert [(one.id, one.is_organisation) for one in listed] == [(GRID, True), (EAST, False), (WEST, False)]
    assert [one.id for one in await of.list(after=GRID, limit=1)] == [EAST]
    assert (await of.get(EAST), await of.get("T0NONE")) == (listed[1], None)
    assert isinstance(listed[1], ChannelInstallation)
    assert "xoxb" not in repr(listed)
    assert await of.uninstall(EAST)
    simulator.server.installations.revoke(WEST)
    assert await of.uninstall(WEST)
    assert not await of.uninstall(WEST)
    assert [one.id for one in await of.list()] == [GRID]
    assert set(simulator.server.installations.teams.values()) & {EAST, WEST} == set()


async def test_an_organisation_installs_once(simulator: Simulator, app: Connection) -> None:
    """On Enterprise Grid one token serves all workspaces of the organisation."""
    for room in ROOMS:
        simulator.world.room(room).enterprise = GRID
    await install(app, simulator, GRID)
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        for room in ROOMS:
            await simulator.say(room, room)
        for update in await recorder.wait(2):
            assert isinstance(update, Message)
            assert update.address.extras == {"team": ROOMS[update.address.room], "enterprise": GRID}
            await app.sender.send(update.address, make_reply(update.text))
    assert [(post.room, post.text) for post in simulator.messages()] == [(room, room) for room in ROOMS]


async def test_access_to_a_workspace_of_the_organisation_ends_waits_in_all_of_them(
    simulator: Simulator, app: Connection
) -> None:
    """An admin grants the app of the whole organisation a workspace; the event names no room."""
    await install(app, simulator, GRID)
    recorder = UpdateRecorder()
    granted = {"type": "team_access_granted", "team_ids": [EAST], "event_ts": "1767225600.000100"}
    async with receiving(app, recorder):
        await simulator.send_team_event(Room("", "", team="", enterprise=GRID), granted)
        (update,) = await recorder.wait(1)
    assert isinstance(update, PermissionsChanged)
    assert (update.extras, update.room_prefix) == ({"enterprise": GRID}, "")


async def test_a_comment_arrives_where_an_organisation_installed_the_app(
    simulator: Simulator, app: Connection
) -> None:
    """The press names its workspace; the modal that it opens names only the organisation."""
    simulator.world.room("C0EAST").enterprise = GRID
    await install(app, simulator, GRID)
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        await simulator.say("C0EAST", "hello")
        (message,) = await recorder.wait(1)
        assert isinstance(message, Message)
        ask = Button(label="Deny", data="deny_with:1", prompt="Why?")
        sent = await app.sender.send(message.address, Reply(text="?", key="dlv_1.0", buttons=(ask,)))
        await simulator.press("C0EAST", sent.platform_id, ask.data)
        await simulator.wait_until(lambda: bool(simulator.open_modals()))
        await simulator.submit("not today")
        *_, press = await recorder.wait(2)
        assert isinstance(press, ButtonPress)
        await app.sender.reply_privately(press, "Denied.")
    assert (press.comment, press.address.extras) == ("not today", {"team": "", "enterprise": GRID})


@pytest.mark.parametrize("wrong", ["state", "cookie", "code", "error"])
async def test_an_installation_without_a_start_is_refused(
    simulator: Simulator, app: Connection, notes: MemoryChannelState, wrong: str
) -> None:
    """A forged state, another browser, a used code and a refusal install nothing."""
    page = await show(app, "install")
    cookie = next(iter(SimpleCookie(page.headers["Set-Cookie"]).values()))
    code = simulator.server.installations.approve(EAST)
    state, sent = cookie.value, f"{cookie.key}={cookie.value}"
    if wrong == "state":
        state = "x" * 43
        sent = f"{cookie.key}={state}"
    query = f"code={'x' if wrong == 'code' else code}&state={state}"
    if wrong == "error":
        query = "error=access_denied"
    answer = await show(app, "oauth", query, "" if wrong == "cookie" else sent)
    assert "Thank you" not in answer.body
    assert isinstance(notes.secrets, MemoryChannelSecrets)
    assert not [name for name in notes.secrets.values if "installation" in name]
    assert code not in answer.body
    assert CLIENT_SECRET not in answer.body


async def test_a_state_is_valid_once() -> None:
    """Two replicas share the states, and only one of two callbacks wins."""
    secrets = MemoryChannelSecrets()
    state = await ChannelStateStore(secrets).async_issue()
    assert [await ChannelStateStore(secrets).async_consume(state) for _ in range(2)] == [True, False]
    assert not await ChannelStateStore(secrets).async_consume("installation:T0EAST")


def test_one_app_level_token_is_one_connection(simulator: Simulator) -> None:
    """Records with the same app-level token have the same key in Socket Mode, whatever their bots."""
    of = plugin.connection_key
    east, west = simulator.settings(), simulator.settings(bot_token="xoxb-2")
    http = simulator.settings(mode="http", signing_secret="a-signing-secret")
    keys = [of(plugin.settings.model_validate(one)) for one in (east, west, simulator.app_settings(), http)]
    assert (len(set(keys[:3])), keys[3]) == (1, "")
    assert keys[0]
    assert simulator.tokens[1] not in keys[0]
