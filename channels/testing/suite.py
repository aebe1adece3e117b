"""The contract of a channel: test classes to subclass.

The subclass needs two fixtures: `plugin`, the ChannelPlugin, and `rig`, a ChannelRig of its platform.
"""

from __future__ import annotations

from channels.testing.features import ChannelFeatureContract
from channels.testing.receiving import ReceivingContract
from channels.testing.rendering import RenderingContract
from channels.testing.sending import SendingContract
from channels.testing.webhooks import WebhookContract

__all__ = ["ChannelContract", "RenderingContract", "WebhookContract"]


class ChannelContract(SendingContract, ReceivingContract, ChannelFeatureContract):
    """What every channel promises. A channel that can be posted to adds WebhookContract."""
