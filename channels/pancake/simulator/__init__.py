"""A simulated Pancake on a loopback port: conversations, messages and comments of one page.

It follows the documentation of the public API, not the adapter: the page's token in the query, 60
conversations at once, the latest 20 messages of one, files by id, unsigned webhooks that are suspended.
"""

from __future__ import annotations

from channels.pancake.simulator.simulator import Simulator, simulate

__all__ = ["Simulator", "simulate"]
