"""A Telegram of one's own on a loopback port, for tests and for trying the gateway without a token.

Written from the Bot API's documentation, not from the adapter. `Simulator` is driven from Python by its
methods and from other processes by `POST /_control/<method>`; see the docstring of `server`.
"""

from __future__ import annotations

from channels.telegram.simulator.faults import TELEGRAM_RATES, MessageRates
from channels.telegram.simulator.simulator import Simulator, simulate
from channels.telegram.simulator.world import Post

__all__ = ["TELEGRAM_RATES", "MessageRates", "Post", "Simulator", "simulate"]
