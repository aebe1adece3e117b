"""A Slack of one's own on a loopback port, for tests and for trying the gateway without a workspace.

Written from Slack's documentation, not from the adapter: the Web API with its refusals, scopes, streams,
modals, reactions, uploads and rate limits; Socket Mode with refresh and redelivery; signed posts of events
with retries. `Simulator` is driven from Python by its methods, and from elsewhere by HTTP: see `control`.
"""

from __future__ import annotations

from channels.slack.simulator.run import simulate
from channels.slack.simulator.simulator import Simulator
from channels.slack.simulator.world import Post

__all__ = ["Post", "Simulator", "simulate"]
