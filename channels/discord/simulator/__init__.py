"""A Discord of one's own on a loopback port, for tests and for trying the gateway without a token.

Written from Discord's documentation of REST, gateway and interactions, not from the adapter. `Simulator` is
driven from Python by its methods.
"""

from __future__ import annotations

from channels.discord.simulator.run import simulate
from channels.discord.simulator.simulator import Simulator
from channels.discord.simulator.world import Post

__all__ = ["Post", "Simulator", "simulate"]
