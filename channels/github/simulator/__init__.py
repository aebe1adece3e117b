"""A simulated GitHub on a loopback port, for tests and for trying the gateway without an app.

It follows GitHub's documentation, not the adapter: the calls of an app and of its installations, comments,
reviews, discussions, reactions, permissions, rate limits, signed events and the log of their deliveries.
"""

from __future__ import annotations

from channels.github.simulator.simulator import Simulator, simulate

__all__ = ["Simulator", "simulate"]
