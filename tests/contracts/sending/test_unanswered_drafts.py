"""A draft whose first call is answered late, or never, is found and edited into the final text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from channel_rigs import open_rig
from channels.message import Message
from channels.port import ChannelFeature, ChannelPlugin
from channels.registry import built_in
from channels.testing.connections import CHANNEL, UpdateRecorder, open_connection, receiving
from channels.testing.rig import ChannelRig
from delivery.chat.drafts import Drafts
from delivery.chat.sink import ChatSink, ConnectedBot
from delivery.database.engine import Database
from delivery.deliveries import routes
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.port import OutcomeKind
from delivery.deliveries.route import Route
from migrated import migrated_sqlite
from sink_harnesses import make_bot, make_delivery

LATE = 1.0
"""Seconds after which the first call is answered: several times what other calls may take."""

DRAFTING = [one for one in built_in().values() if {ChannelFeature.EDIT, ChannelFeature.STREAM} & one.features]
"""The channels on which a reply is shown while it is generated."""

FINDING = [one for one in built_in().values() if ChannelFeature.FIND in one.features]


@asynccontextmanager
async def drafting(
    plugin: ChannelPlugin, directory: Path
) -> AsyncIterator[tuple[ChannelRig, ConnectedBot, str, Database]]:
    """Open a platform with one conversation; yields its rig, bot, route target and database."""
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(open_rig(plugin))
        connection = await stack.enter_async_context(open_connection(plugin, rig.settings()))
        recorder = UpdateRecorder()
        await stack.enter_async_context(receiving(connection, recorder))
        await rig.say("hello")
        (received,) = await recorder.wait(1)
        assert isinstance(received, Message)
        database = Database(await migrated_sqlite(directory / "one.db"))
        async with database.begin() as opened:
            route = Route.to_chat(account="acc_1", conversation="cnv_1", address=received.address)
            await routes.add_route(opened, route)
        stack.push_async_callback(database.close)
        bot = make_bot(connection.sender, plugin.features, replace(plugin.limits, room_sends_per_second=100))
        yield rig, bot, route.target, database


async def show_and_complete(
    bot: ConnectedBot, target: str, database: Database, is_shown: Callable[[], bool]
) -> OutcomeKind:
    """Show "Hel", and deliver the whole text once it is visible; returns the outcome."""
    drafts = Drafts(
        get_bot={CHANNEL: bot}.get,
        database=database,
        draft_delay=0,
        typing_delay=900,
        update_interval=0,
        write_seconds=LATE / 5,
    )
    stop = asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(drafts.run(stop))
        await drafts.started.wait()
        async with drafts.publish_while("cnv_1", "trn_1") as publish:
            assert publish is not None
            publish.show_text("msg_1", "Hel")
            while not is_shown():  # noqa: ASYNC110 - a rig sends no notification of a message
                await asyncio.sleep(0.01)
            publish.show_text("msg_1", None)
        sink = ChatSink({CHANNEL: bot}.get, claim=drafts.claim)
        delivery = make_delivery(target=target, body=encode_part(Part(text="Hello", message="msg_1")))
        outcome = await sink.send(delivery)
        while outcome.kind is OutcomeKind.RETRY:
            await asyncio.sleep(0.05)
            outcome = await sink.send(delivery)
        stop.set()
    return outcome.kind


@pytest.mark.parametrize("showing", DRAFTING, ids=lambda plugin: plugin.name)
async def test_a_draft_that_is_answered_late_becomes_the_final_text(
    showing: ChannelPlugin, tmp_path: Path
) -> None:
    """Its id is waited for, and one message is left."""
    async with drafting(showing, tmp_path) as (rig, bot, target, database):
        await rig.answer_late(LATE)
        outcome = await show_and_complete(bot, target, database, lambda: bool(rig.visible_messages()))
        texts = [one.text for one in rig.visible_messages()]
    assert (outcome, texts) == (OutcomeKind.DELIVERED, ["Hello"])


@pytest.mark.parametrize("finding", FINDING, ids=lambda plugin: plugin.name)
async def test_a_draft_whose_answer_is_lost_is_found(finding: ChannelPlugin, tmp_path: Path) -> None:
    """The final text looks it up by its key and edits it."""
    async with drafting(finding, tmp_path) as (rig, bot, target, database):
        await rig.cut_sending(carried_out=True)
        outcome = await show_and_complete(bot, target, database, lambda: bool(rig.visible_messages()))
        texts = [one.text for one in rig.visible_messages()]
    assert (outcome, texts) == (OutcomeKind.DELIVERED, ["Hello"])


@pytest.mark.parametrize("finding", FINDING, ids=lambda plugin: plugin.name)
async def test_a_draft_that_was_not_shown_is_not_waited_for(finding: ChannelPlugin, tmp_path: Path) -> None:
    """When its call was cut before it was carried out, the final text is sent."""
    async with drafting(finding, tmp_path) as (rig, bot, target, database):
        await rig.cut_sending(carried_out=False)
        outcome = await show_and_complete(bot, target, database, lambda: rig.send_count() > 0)
        texts = [one.text for one in rig.visible_messages()]
    assert (outcome, texts) == (OutcomeKind.DELIVERED, ["Hello"])
