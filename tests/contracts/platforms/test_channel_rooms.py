"""A channel's record names the agents of single rooms; an unknown name is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.vault import open_vault
from gateway.ingress.channel_context import ChannelContext
from gateway.records.errors import InvalidRecord
from gateway.records.records import Records


async def make_channel(database: Database, data: Path, rooms: dict[str, Any]) -> tuple[ChannelContext, str]:
    """Create a channel with these rooms; returns its context and the id of the agent `helper`."""
    book = Records(open_vault(data))
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        main = await book.create(connection, account.id, "agent", name="main", config={})
        other = await book.create(connection, account.id, "agent", name="helper", config={})
        written = await book.create(
            connection,
            account.id,
            "channel",
            name="tg",
            config={"kind": "telegram", "agent": "main", "settings": {"token": "1:a", "rooms": rooms}},
        )
    config = book.channel_config(written.record)
    settings = _settings(config.settings)
    assert config.agent == main.record.id
    return ChannelContext.from_settings(
        written.record, agent=config.agent, settings=settings, bot_user_id="1"
    ), other.record.id


def _settings(given: dict[str, Any]) -> Any:
    from channels.registry import plugin

    return plugin("telegram").settings.model_validate(given)


async def test_a_rooms_agent_is_found_by_name_when_the_record_is_written(
    database: Database, tmp_path: Path
) -> None:
    """Whatever characters a platform puts into its room ids, the room stores the agent's id."""
    rooms = {
        "-100": {"agent": "helper", "groups": "always"},
        "owner/repo~1": {"agent": "helper"},
        "quiet": {"groups": "command"},
    }
    context, other = await make_channel(database, tmp_path, rooms)
    assert context.agent_in("-100") == other
    assert context.agent_in("owner/repo~1") == other
    assert context.agent_in("quiet") is None
    assert (context.groups_in("-100"), context.groups_in("quiet"), context.groups_in("else")) == (
        "always",
        "command",
        "mention",
    )


async def test_a_room_cannot_name_an_agent_that_is_none(database: Database, tmp_path: Path) -> None:
    """The problem points at the room."""
    with pytest.raises(InvalidRecord) as caught:
        await make_channel(database, tmp_path, {"owner/repo": {"agent": "nobody"}})
    (problem,) = caught.value.problems
    assert problem.pointer == "/config/settings/rooms/owner~1repo/agent"
    assert "nobody" in problem.detail
