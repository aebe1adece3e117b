"""A simulated Telegram on a loopback port, for tests and for trying the gateway without a token.

It follows the Bot API's documentation, not the adapter. Drive it from Python by the methods of `Simulator`,
or from other programs by `POST /_control/<method>`; see `server`.
"""

from __future__ import annotations

from channels.telegram.simulator.faults import TELEGRAM_RATES, MessageRates
from channels.telegram.simulator.simulator import Simulator, simulate
from channels.telegram.simulator.world import Post

__all__ = ["TELEGRAM_RATES", "MessageRates", "Post", "Simulator", "simulate"]
