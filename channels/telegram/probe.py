"""Check a configured bot: its identity, what it may read, how updates arrive, what is missing."""

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
from egress.guard import EgressGuard

MAX_PENDING = 100
_REMEDIES = {
    "retry": "Check that base_url can be reached from this host, then try again.",
    "give_up": "Read Telegram's message.",
    "operator": "Copy the token from @BotFather again.",
}


async def probe(settings: TelegramSettings, guard: EgressGuard) -> tuple[CheckResult, ...]:
    """Ask Telegram about the bot and return one result per check, with a remedy for each problem."""
    async with connect(settings, guard) as api:
        try:
            me = await api.call("getMe", {})
            webhook = await api.call("getWebhookInfo", {})
        except ChannelError as error:
            return (
                CheckResult(subject="telegram", ok=False, detail=str(error), remedy=_REMEDIES[error.remedy]),
            )
        commands = await _commands_check(api)
    delivery = _webhook_check(webhook, settings) if settings.mode == "webhook" else _polling_check(webhook)
    return (
        _identity_check(me),
        _groups_check(me, settings),
        _privacy_check(me, settings),
        delivery,
        commands,
    )


def _identity_check(me: Mapping[str, Any]) -> CheckResult:
    return CheckResult(subject="bot", ok=True, detail=f"@{me.get('username')} ({me.get('id')})")


def _groups_check(me: Mapping[str, Any], settings: TelegramSettings) -> CheckResult:
    """Check that the bot can be added to the groups that are configured."""
    if me.get("can_join_groups") is not False:
        return CheckResult(subject="groups", ok=True, detail="the bot can be added to groups")
    return CheckResult(
        subject="groups",
        ok=not any(room.startswith("-") for room in settings.rooms),
        detail="the bot cannot be added to groups",
        remedy="To use it in groups: @BotFather, /setjoingroups, Enable.",
    )


def _privacy_check(me: Mapping[str, Any], settings: TelegramSettings) -> CheckResult:
    if me.get("can_read_all_group_messages") is True:
        return CheckResult(subject="group messages", ok=True, detail="all are delivered")
    always_rooms = [room for room, own in settings.rooms.items() if own.groups == "always"]
    setting_names = ["groups"] if settings.groups == "always" else []
    setting_names += [f"rooms.{room}.groups" for room in always_rooms]
    detail = "commands, mentions and replies are delivered (privacy mode)"
    return CheckResult(
        subject="group messages",
        ok=not setting_names,
        detail=f'{detail}, but {" and ".join(setting_names)} = "always"' if setting_names else detail,
        remedy="To read all: @BotFather, /setprivacy, Disable; then remove the bot and add it again.",
    )


def _polling_check(webhook: Mapping[str, Any]) -> CheckResult:
    waiting = f"{webhook.get('pending_update_count', 0)} updates waiting"
    if not webhook.get("url"):
        return CheckResult(subject="polling", ok=True, detail=f"ready, {waiting}")
    return CheckResult(
        subject="polling",
        ok=True,
        detail=f"a webhook is set, to {_host(str(webhook['url']))}; polling removes it, and the program "
        f"that set it no longer receives updates; {waiting}",
    )


def _webhook_check(webhook: Mapping[str, Any], settings: TelegramSettings) -> CheckResult:
    """Compare the registered webhook with the expected one; the gateway registers it at start."""
    url, waiting = str(webhook.get("url") or ""), int(webhook.get("pending_update_count") or 0)
    counted = f"{waiting} updates waiting"
    if not url:
        return CheckResult(
            subject="webhook",
            ok=True,
            detail=f"not registered: the gateway registers DOVECOTE_PUBLIC_URL when it starts; {counted}",
        )
    if settings.webhook_url is not None and url.rstrip("/") != settings.webhook_url:
        return CheckResult(
            subject="webhook",
            ok=False,
            detail=f"Telegram posts to another URL, at {_host(url)}; {counted}",
            remedy="Start the gateway, which registers its own URL, and check who else uses this token.",
        )
    failure = _last_failure(webhook)
    return CheckResult(
        subject="webhook",
        ok=not failure and waiting < MAX_PENDING,
        detail=f"Telegram posts to {_host(url)}, {counted}{failure}",
        remedy="Make sure Telegram can reach the public URL over https with a trusted certificate."
        if failure
        else "",
    )


def _host(url: str) -> str:
    """Return the host of a URL; its path may contain someone's secret."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2] or "an invalid URL"


def _last_failure(webhook: Mapping[str, Any]) -> str:
    """Describe the last failed post, while updates are waiting because of it."""
    text, timestamp = webhook.get("last_error_message"), webhook.get("last_error_date")
    if not text:
        return ""
    if not isinstance(timestamp, int) or not 0 < timestamp < MAX_UNIX_TIME:
        return f"; last failure: {text}"
    return f"; last failure at {datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M} UTC: {text}"


async def _commands_check(api: Api) -> CheckResult:
    try:
        published = await is_published(api)
    except ChannelError as error:
        return CheckResult(subject="commands", ok=False, detail=str(error), remedy="Try again.")
    detail = "the menu is set" if published else "the menu is set when the gateway starts"
    return CheckResult(subject="commands", ok=True, detail=detail)
