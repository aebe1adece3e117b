"""`[channels.NAME]` of the settings file: the adapter checks all but the platform and the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.config.settings import InvalidSettings, SettingProblem, Settings


def read(directory: Path, toml: str, **env: str) -> Settings:
    """Return the settings of a file with this text."""
    (directory / "dovecote.toml").write_text(toml)
    return load(env=env, directory=directory)


def only_problem(directory: Path, toml: str) -> SettingProblem:
    """Return the only problem of a file with this text."""
    with pytest.raises(InvalidSettings) as caught:
        read(directory, toml)
    (problem,) = caught.value.problems
    return problem


def test_a_channel_is_held_to_its_platforms_settings(tmp_path: Path) -> None:
    """A channel's table is checked by its adapter, under the kind that its name implies."""
    problem = only_problem(tmp_path, '[channels.telegram]\ntoken = "123456:ABC"\ncolour = "red"')
    assert problem.key == "channels.telegram.colour"


def test_a_missing_setting_is_named(tmp_path: Path) -> None:
    """The problem has the key that is missing, not the table, and the variable that would set it."""
    problem = only_problem(tmp_path, '[channels.my-bot]\nkind = "telegram"')
    assert (problem.key, problem.detail) == ("channels.my-bot.token", "is required")
    assert problem.source.endswith("dovecote.toml")
    assert problem.remedy == "Set channels.my-bot.token or DOVECOTE_CHANNELS__MY_BOT__TOKEN"


def test_a_channel_may_have_an_agent_of_its_own(tmp_path: Path) -> None:
    """`agent` is not a setting of the adapter; a blank one is refused."""
    table = '[channels.telegram]\ntoken = "123456:ABC"\nagent = '
    assert read(tmp_path, f'{table}"coder"').channels["telegram"]["agent"] == "coder"
    assert only_problem(tmp_path, f'{table}" "').key == "channels.telegram.agent"


def test_a_channel_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    """`kind` names the platform when the table's name does not; commas make lists; variables find dashes."""
    settings = read(
        tmp_path,
        '[channels.my-bot]\nkind = "telegram"\nmode = "polling"\nallow = "pairing, 17"',
        DOVECOTE_CHANNELS__MY_BOT__TOKEN="123456:ABC",
    )
    assert settings.channels == {
        "my-bot": {"kind": "telegram", "mode": "polling", "token": "123456:ABC", "allow": ["pairing", "17"]}
    }
