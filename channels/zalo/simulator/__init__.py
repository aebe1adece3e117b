"""A simulated Zalo on a loopback port: the Bot Platform and the API of an Official Account.

It follows the platforms' documentation, not the adapter: tokens, polls that give one update and forget it,
webhooks with their secrets, 2,000 characters, the 48 hours of an Official Account, refresh tokens used once.
"""

from __future__ import annotations

from channels.zalo.simulator.simulator import Simulator, simulate

__all__ = ["Simulator", "simulate"]
