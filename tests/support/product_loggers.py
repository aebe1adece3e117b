"""The loggers of the product in this process."""

from __future__ import annotations

import logging

OF_LIBRARIES = "channels.slack.sdk"
"""The one logger of ours that is silent on purpose: the SDK logs texts of messages there."""

_PRODUCT = ("dovecote", "gateway", "delivery", "channels", "sandbox", "egress")


def silent_loggers() -> list[str]:
    """Return the names of loggers of the product that would not log an error."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in _PRODUCT]
    return [
        name
        for name in sorted(names)
        if not name.startswith(OF_LIBRARIES)
        and (logging.getLogger(name).disabled or logging.getLogger(name).getEffectiveLevel() > logging.ERROR)
    ]
