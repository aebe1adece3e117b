"""discord.py, an independent client, accepts the simulated Discord as Discord."""

from __future__ import annotations

import asyncio
import io
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from yarl import URL

from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it imports audioop, for voice
    import discord
    from discord import app_commands

CHAT = 4004


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


@pytest.fixture
def endpoints(simulator: Simulator) -> Iterator[None]:
    """Lead discord.py to the simulator; where it calls is global to a process."""
    socket = discord.gateway.DiscordWebSocket
    before = discord.http.Route.BASE, socket.DEFAULT_GATEWAY
    discord.http.Route.BASE = f"{simulator.url}/api/v10"
    socket.DEFAULT_GATEWAY = URL(f"ws://127.0.0.1:{simulator.port}/gateway/")
    yield
    discord.http.Route.BASE, socket.DEFAULT_GATEWAY = before


class RecordingClient(discord.Client):
    """A client that records what it receives."""

    def __init__(self) -> None:
        intents = discord.Intents(guilds=True, messages=True, message_content=True, reactions=True)
        super().__init__(intents=intents, max_messages=None, guild_ready_timeout=0.1)
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.ready = asyncio.Event()
        self.tree = app_commands.CommandTree(self)
        self.tree.add_command(_status)

    async def on_ready(self) -> None:
        """The server and its channels are known."""
        self.ready.set()

    async def on_message(self, message: discord.Message) -> None:
        """Record messages of others."""
        if message.author != self.user:
            self.events.put_nowait(message)

    async def on_raw_message_edit(self, payload: discord.RawMessageUpdateEvent) -> None:
        """Keep a change."""
        self.events.put_nowait(payload)

    async def on_raw_reaction_add(self, payload: discord.RawReactionActionEvent) -> None:
        """Keep a reaction."""
        self.events.put_nowait(payload)

    async def on_interaction(self, interaction: discord.Interaction) -> None:
        """Keep an interaction."""
        self.events.put_nowait(interaction)

    async def on_error(self, event_method: str, /, *_: Any, **__: Any) -> None:
        """Let nothing that goes wrong pass unseen."""
        self.events.put_nowait(AssertionError(event_method))

    async def received(self) -> Any:
        """Wait for the next."""
        async with asyncio.timeout(10):
            return await self.events.get()


@app_commands.command(name="status", description="Tell what is going on")
async def _status(interaction: discord.Interaction) -> None:
    await interaction.response.defer()


@asynccontextmanager
async def connected(simulator: Simulator) -> AsyncIterator[RecordingClient]:
    """Connect a client and wait until it is ready."""
    client = RecordingClient()
    task = asyncio.create_task(client.start(simulator.token))
    try:
        is_ready = asyncio.create_task(client.ready.wait())
        await asyncio.wait({task, is_ready}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        is_ready.cancel()
        yield client
    finally:
        await client.close()
        await task


@pytest.mark.usefixtures("endpoints")
async def test_it_receives_and_answers_with_a_nonce(simulator: Simulator) -> None:
    """A message arrives with author and channel; a reply with the same nonce twice is one message."""
    async with connected(simulator) as client:
        await simulator.say(CHAT, "hello")
        message = await client.received()
        assert (message.content, message.author.display_name) == ("hello", "Person 7")
        assert message.guild.get_channel(CHAT) == message.channel
        first = await message.reply("good day", nonce="n-1")
        again = await message.channel.send("good day", nonce="n-1")
        assert first.id == again.id
        await simulator.say(7001, "in private")
        private = await client.received()
        assert isinstance(private.channel, discord.DMChannel)
        await private.channel.send("in private too")
    assert [post.text for post in simulator.messages()] == ["good day", "in private too"]


@pytest.mark.usefixtures("endpoints")
async def test_it_registers_commands_and_answers_one(simulator: Simulator) -> None:
    """A bulk overwrite registers the tree; a command is deferred, filled and followed up."""
    async with connected(simulator) as client:
        (made,) = await client.tree.sync()
        assert made.name == "status"
        assert set(simulator.world.commands) == {"status"}
        asked = await simulator.command(CHAT, "status")
        interaction = await client.received()
        await simulator.wait_until(lambda: asked.response_type is not None)
        await interaction.edit_original_response(content="well")
        await interaction.followup.send("only you", ephemeral=True)
    assert [post.text for post in simulator.messages()] == ["well"]
    assert asked.notices == ["only you"]


@pytest.mark.usefixtures("endpoints")
async def test_it_reacts_edits_and_uploads(simulator: Simulator) -> None:
    """Reactions, edits, files, history and threads are readable by the client."""
    async with connected(simulator) as client:
        number = await simulator.say(CHAT, "hello")
        message = await client.received()
        await message.add_reaction("\N{EYES}")
        assert simulator.world.reactions[number] == {"\N{EYES}"}
        assert (await client.received()).user_id == int(simulator.world.bot["id"])
        await message.remove_reaction("\N{EYES}", client.user)
        assert simulator.world.reactions[number] == set()
        await simulator.react(CHAT, number, "\N{THUMBS UP SIGN}")
        assert (await client.received()).emoji.name == "\N{THUMBS UP SIGN}"
        sent = await message.channel.send("here", file=discord.File(io.BytesIO(b"abc"), "a.txt"))
        assert await sent.attachments[0].read() == b"abc"
        await sent.edit(content="there")
        assert (await client.received()).message_id == sent.id
        assert [one.content async for one in message.channel.history()] == ["there", "hello"]
        thread = await simulator.thread(CHAT)
        await simulator.say(CHAT, "inside", thread=thread)
        inside = await client.received()
        assert isinstance(inside.channel, discord.Thread)
        assert inside.channel.parent_id == CHAT


@pytest.mark.usefixtures("endpoints")
async def test_a_form_is_opened_and_submitted(simulator: Simulator) -> None:
    """A press opens a modal, and what is written into it comes back."""
    async with connected(simulator) as client:
        view = discord.ui.View(timeout=None)
        view.add_item(discord.ui.Button(label="No", custom_id="no"))
        channel = await client.fetch_channel(CHAT)
        assert isinstance(channel, discord.TextChannel)
        sent = await channel.send("May I?", view=view)
        opened = await simulator.press(CHAT, str(sent.id), "No")
        pressed = await client.received()
        form = discord.ui.Modal(title="Why?", custom_id="why", timeout=None)
        form.add_item(discord.ui.TextInput(label="Reason", custom_id="reason"))
        await pressed.response.send_modal(form)
        await simulator.submit(opened, "too risky")
        submitted = await client.received()
        assert submitted.type is discord.InteractionType.modal_submit
        assert "too risky" in str(submitted.data)


@pytest.mark.usefixtures("endpoints")
async def test_it_survives_a_broken_connection(simulator: Simulator) -> None:
    """Asked to reconnect, it resumes, and missed messages are replayed."""
    async with connected(simulator) as client:
        await simulator.say(CHAT, "before")
        assert (await client.received()).content == "before"
        await simulator.reconnect()
        await simulator.wait_until(lambda: simulator.sessions.resumed == 1)
        await simulator.say(CHAT, "after")
        assert (await client.received()).content == "after"
    assert simulator.sessions.identified == 1


@pytest.mark.usefixtures("endpoints")
async def test_it_respects_the_stated_rate_limit_buckets(simulator: Simulator) -> None:
    """With honest headers the client paces itself and meets no refusal; a refusal it survives."""
    await simulator.limit("create", 2, 0.2)
    async with connected(simulator) as client:
        channel = await client.fetch_channel(CHAT)
        assert isinstance(channel, discord.TextChannel)
        for number in range(5):
            await channel.send(str(number))
        assert simulator.server.limits.refused == 0
        await simulator.throttle(0.05)
        await channel.send("5")
    assert [post.text for post in simulator.messages()] == list("012345")


@pytest.mark.usefixtures("endpoints")
async def test_a_missing_permission_is_forbidden(simulator: Simulator) -> None:
    """What a channel's overwrites deny, the client sees and is refused."""
    await simulator.deny(CHAT, "Send Messages")
    async with connected(simulator) as client:
        channel = client.get_channel(CHAT)
        assert isinstance(channel, discord.TextChannel)
        assert not channel.permissions_for(channel.guild.me).send_messages
        with pytest.raises(discord.Forbidden, match="50013"):
            await channel.send("hello")
