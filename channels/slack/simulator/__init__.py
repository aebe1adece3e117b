"""A simulated Slack on a loopback port, for tests and for trying the gateway without a workspace.

It follows Slack's documentation, not the adapter: the Web API with its errors, scopes, streams, modals,
reactions, uploads and rate limits; Socket Mode with refresh and redelivery; signed event posts with retries.
Drive it from Python by the methods of `Simulator`, or from other programs by HTTP; see `control`.
"""

from __future__ import annotations

from channels.slack.simulator.run import simulate
from channels.slack.simulator.simulator import Simulator
from channels.slack.simulator.world import Post

__all__ = ["Post", "Simulator", "simulate"]
