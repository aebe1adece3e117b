"""A simulated Discord on a loopback port, for tests and for trying the gateway without a token.

It follows Discord's documentation of REST, gateway and interactions, not the adapter. Drive it from Python by
the methods of `Simulator`, or from other programs by HTTP; see `control`.
"""

from __future__ import annotations

from channels.discord.simulator.run import simulate
from channels.discord.simulator.simulator import Simulator
from channels.discord.simulator.world import Post

__all__ = ["Post", "Simulator", "simulate"]
