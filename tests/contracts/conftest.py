"""Fixtures of the contracts: each built-in channel on its own simulator, and databases of both kinds.

A few files do not test the statements of a store. In the gate they run one test on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channel_rigs import open_rig
from channels.port import ChannelPlugin
from channels.registry import built_in
from channels.testing.rig import WebhookRig
from databases import database, database_url, postgres  # noqa: F401 - fixtures

MOSTLY_ON_SQLITE = {
    "test_approval_replies",
    "test_environment_access",
    "test_key_rotation",
    "test_message_origin",
    "test_model_command",
    "test_persons",
    "test_questions",
    "test_queue_modes",
    "test_retries",
    "test_sandbox_ceilings",
    "test_sender_rate_limit",
    "test_session_reset",
    "test_status_reactions",
    "test_tool_calls",
    "test_turn_buttons",
    "test_turn_trees",
    "test_usage_command",
}
"""Files about behaviour above the stores, which have contracts of their own on both kinds of database."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark, in these files, all tests on PostgreSQL but the first as exhaustive."""
    begun: set[str] = set()
    for item in items:
        is_repeated = item.path.stem in MOSTLY_ON_SQLITE and runs_on_postgresql(item)
        if is_repeated and item.path.stem in begun:
            item.add_marker(pytest.mark.exhaustive)
        if is_repeated:
            begun.add(item.path.stem)


def runs_on_postgresql(item: pytest.Item) -> bool:
    """Return whether a test has a database of this kind."""
    return isinstance(item, pytest.Function) and "postgresql" in item.name.partition("[")[2]


@pytest.fixture(params=list(built_in().values()), ids=lambda plugin: plugin.name)
def plugin(request: pytest.FixtureRequest) -> ChannelPlugin:
    """Return each built-in channel in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def rig(plugin: ChannelPlugin) -> AsyncIterator[WebhookRig]:
    """Return the rig of the channel's simulator."""
    async with open_rig(plugin) as rig:
        yield rig
