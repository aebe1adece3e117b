"""Heartbeats: schedules whose turns end without a message if there is nothing to report."""

from __future__ import annotations

from typing import Any

from gateway.agents.client_request import ClientRequest

NOTHING_TO_REPORT = "HEARTBEAT_OK"
"""The answer of a heartbeat's turn that is not sent."""

INSTRUCTIONS = (
    "This turn was started by a schedule that checks something regularly. If there is nothing that people "
    f"should read now, answer {NOTHING_TO_REPORT} and nothing else: then no message is sent. Otherwise only "
    "your last message is sent."
)


def heartbeat_request() -> dict[str, Any] | None:
    """Return what a heartbeat adds to its turn."""
    return ClientRequest(instructions=INSTRUCTIONS, heartbeat=True).to_json()
