"""Set the bot's menu of commands, if it differs from ours."""

from __future__ import annotations

import structlog

from channels.errors import ChannelError
from channels.inbox.commands import DESCRIPTIONS
from channels.telegram.api import Api

TIMEOUT_SECONDS = 5.0
COMMANDS = [{"command": name, "description": words} for name, words in DESCRIPTIONS.items()]

log = structlog.get_logger(__name__)


async def publish(api: Api) -> None:
    """Set the menu if it differs; a failure is only logged."""
    try:
        if not await is_published(api):
            await api.call("setMyCommands", {"commands": COMMANDS}, timeout=TIMEOUT_SECONDS)
    except ChannelError as error:
        log.warning("telegram.command_menu_failed", error=str(error))


async def is_published(api: Api) -> bool:
    """Return whether Telegram shows the menu; raises ChannelError."""
    menu = await api.call("getMyCommands", {}, timeout=TIMEOUT_SECONDS)
    return bool(menu == COMMANDS)
