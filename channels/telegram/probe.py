"""Look at a bot from outside: who it is, what it may read, how updates come in, what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from channels.errors import ChannelError
from channels.port import CheckResult
from channels.telegram.api import Api, connect
from channels.telegram.payloads import MAX_UNIX_TIME
from channels.telegram.send.command_menu import is_published
from channels.telegram.settings import TelegramSettings

MAX_PENDING = 100
_REMEDIES = {
    "retry": "See whether base_url can be reached from here, then try again.",
    "give_up": "See the message of Telegram.",
    "operator": "Take the token from @BotFather again.",
}


async def probe(settings: TelegramSettings) -> tuple[CheckResult, ...]:
    """Ask Telegram; what is not well has a remedy."""
    async with connect(settings) as api:
        try:
            me = await api.call("getMe", {})
            webhook = await api.call("getWebhookInfo", {})
        except ChannelError as error:
            return (
                CheckResult(subject="telegram", ok=False, detail=str(error), remedy=_REMEDIES[error.remedy]),
            )
        commands = await _commands_check(api)
    reception = _webhook_check(webhook, settings) if settings.mode == "webhook" else _polling_check(webhook)
    return (
        _identity_check(me),
        _groups_check(me, settings),
        _privacy_check(me, settings),
        reception,
        commands,
    )


def _identity_check(me: Mapping[str, Any]) -> CheckResult:
    return CheckResult(subject="bot", ok=True, detail=f"@{me.get('username')} ({me.get('id')})")


def _groups_check(me: Mapping[str, Any], settings: TelegramSettings) -> CheckResult:
    """Rooms that are configured want a bot that can be added to them."""
    if me.get("can_join_groups") is not False:
        return CheckResult(subject="groups", ok=True, detail="it can be added to groups")
    return CheckResult(
        subject="groups",
        ok=not any(room.startswith("-") for room in settings.rooms),
        detail="it cannot be added to groups",
        remedy="To use it in groups: @BotFather, /setjoingroups, Enable.",
    )


def _privacy_check(me: Mapping[str, Any], settings: TelegramSettings) -> CheckResult:
    if me.get("can_read_all_group_messages") is True:
        return CheckResult(subject="group messages", ok=True, detail="all are delivered")
    listening = [room for room, own in settings.rooms.items() if own.groups == "always"]
    wanted = ["groups"] if settings.groups == "always" else []
    wanted += [f"rooms.{room}.groups" for room in listening]
    detail = "commands, mentions and replies are delivered (privacy mode)"
    return CheckResult(
        subject="group messages",
        ok=not wanted,
        detail=f'{detail}, but {" and ".join(wanted)} = "always"' if wanted else detail,
        remedy="To read all: @BotFather, /setprivacy, Disable; then remove the bot and add it again.",
    )


def _polling_check(webhook: Mapping[str, Any]) -> CheckResult:
    waiting = f"{webhook.get('pending_update_count', 0)} updates waiting"
    if not webhook.get("url"):
        return CheckResult(subject="polling", ok=True, detail=f"ready, {waiting}")
    return CheckResult(
        subject="polling",
        ok=True,
        detail=f"a webhook is set, to {_host(str(webhook['url']))}; polling removes it, and whoever set it "
        f"hears nothing then; {waiting}",
    )


def _webhook_check(webhook: Mapping[str, Any], settings: TelegramSettings) -> CheckResult:
    """Compare where Telegram posts with where it should; the gateway registers itself when it starts."""
    url, waiting = str(webhook.get("url") or ""), int(webhook.get("pending_update_count") or 0)
    counted = f"{waiting} updates waiting"
    if not url:
        return CheckResult(
            subject="webhook",
            ok=True,
            detail=f"not registered: the gateway does it when it starts, at DOVECOTE_PUBLIC_URL; {counted}",
        )
    if settings.webhook_url is not None and url.rstrip("/") != settings.webhook_url:
        return CheckResult(
            subject="webhook",
            ok=False,
            detail=f"Telegram posts to another address, at {_host(url)}; {counted}",
            remedy="Start the gateway, which registers its own, and see who else uses this token.",
        )
    failure = _last_failure(webhook)
    return CheckResult(
        subject="webhook",
        ok=not failure and waiting < MAX_PENDING,
        detail=f"Telegram posts to {_host(url)}, {counted}{failure}",
        remedy="See that Telegram reaches the public URL over https, with a certificate it trusts."
        if failure
        else "",
    )


def _host(url: str) -> str:
    """Return where an address leads; what stands behind that may be somebody's secret."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2] or "an odd address"


def _last_failure(webhook: Mapping[str, Any]) -> str:
    """Say what went wrong last, as long as something waits because of it."""
    said, when = webhook.get("last_error_message"), webhook.get("last_error_date")
    if not said:
        return ""
    if not isinstance(when, int) or not 0 < when < MAX_UNIX_TIME:
        return f"; last failure: {said}"
    return f"; last failure at {datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M} UTC: {said}"


async def _commands_check(api: Api) -> CheckResult:
    try:
        published = await is_published(api)
    except ChannelError as error:
        return CheckResult(subject="commands", ok=False, detail=str(error), remedy="Try again.")
    detail = "the menu is set" if published else "the menu is set when the gateway starts"
    return CheckResult(subject="commands", ok=True, detail=detail)
