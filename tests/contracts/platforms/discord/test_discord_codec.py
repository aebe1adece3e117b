"""No payload, however broken, ends Discord's decoder, and no reply waits for a command's place too long."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from channels.discord import payloads
from channels.discord.api import connect
from channels.discord.receive import codec
from channels.discord.receive.interactions import initial_response
from channels.discord.send.deferred_replies import (
    MAX_NOTES,
    TOKEN_SECONDS,
    DeferredReplies,
    DeferredReplyNote,
    decode_note,
)
from channels.discord.settings import DiscordSettings
from channels.message import (
    Address,
    IgnoredUpdate,
    PermissionsChanged,
    RoomMigrated,
    RoomsRenamed,
)
from channels.receiving import read_markers
from channels.testing.memory_state import MemoryChannelState
from egress.guard import TRUSTED

FOLDER = files("channels.discord").joinpath("samples")
SAMPLES = [json.loads(path.read_text()) for path in sorted(FOLDER.iterdir(), key=lambda path: path.name)]
FULL = [sample for sample in SAMPLES if sample["update"]]
BOT = payloads.Bot(**SAMPLES[0]["bot"])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def paths_in(value: Any, *before: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every part of a payload."""
    yield before
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield from paths_in(part, *before, name)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_payload_with_any_part_replaced_is_an_update_or_ignored(data: st.DataObject) -> None:
    """Decoding and reacting raise nothing, and what comes of it can be stored."""
    payload = copy.deepcopy(data.draw(st.sampled_from(FULL))["update"])
    way = data.draw(st.sampled_from([way for way in paths_in(payload) if way]))
    target = payload
    for step in way[:-1]:
        target = target[step]
    target[way[-1]] = data.draw(JUNK)
    decoded = codec.decode(payload, channel="chn", bot=BOT)
    if not isinstance(decoded, IgnoredUpdate):
        assert not isinstance(decoded, RoomMigrated | RoomsRenamed)
        assert "\0" not in repr(decoded).replace("\\0", "")
        place = str(decoded.extras) if isinstance(decoded, PermissionsChanged) else decoded.address.encode()
        place.encode()
        decoded.key.encode()
    inner = payload.get("d") if isinstance(payload, dict) else None
    if isinstance(inner, dict):
        json.dumps(initial_response(inner, decoded))


@settings(deadline=None)
@given(JUNK)
def test_anything_at_all_is_decoded(payload: Any) -> None:
    """What is no event is ignored with a reason."""
    assert isinstance(codec.decode(payload, channel="chn", bot=BOT), IgnoredUpdate)


@settings(deadline=None)
@given(st.integers(10**17, 10**19), st.integers(1, 10**6))
def test_commands_of_one_moment_are_noted_apart(first: int, later: int) -> None:
    """Ids of the next milliseconds, and of the same one, fall into slots of their own."""
    for step in (1, 1 << 22, later << 22):
        slots = [
            DeferredReplyNote(channel="5", interaction=str(first + n * step), at=0.0).slot
            for n in range(MAX_NOTES)
        ]
        assert len(set(slots)) == (MAX_NOTES if step % MAX_NOTES else 1)


@settings(deadline=None)
@given(st.text(max_size=60) | JUNK.map(json.dumps))
def test_a_note_of_anything_is_read_or_left(note: str) -> None:
    """Notes that others wrote, or an earlier version, end nothing."""
    for loaded in (decode_note(note), read_markers.decode_marker(note)):
        assert loaded is None or loaded.encode()


async def test_a_place_is_used_for_fourteen_minutes() -> None:
    """Discord ends its token after fifteen; replies that come later are ordinary messages."""
    now = 1_000_000.0
    address = Address(channel="chn", room="5")
    async with connect(DiscordSettings.model_validate({"token": "x"}), TRUSTED) as api:
        deferred = DeferredReplies(api, MemoryChannelState(), clock=lambda: now)
        for interaction in ("11", "12"):
            await deferred.add(address, application="1", interaction=interaction, token="t")
        first = await deferred.claim(address, "key", "nonce")
        again = await deferred.claim(address, "key", "nonce")
        now += TOKEN_SECONDS + 1
        late = await deferred.claim(address, "other", "nonce")
    assert first is not None
    assert (first.interaction, again, late) == ("11", first, None)
