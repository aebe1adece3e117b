"""Fixtures of the Slack tests: a simulated Slack and connections to it."""

from __future__ import annotations

from slack_connections import (  # noqa: F401 - fixtures
    http_mode_connection,
    installable_app,
    memory_state,
    slack_simulator,
    socket_mode_connection,
)
