"""Check a configured app: the token, its scopes, and how events arrive."""

from __future__ import annotations

from channels.errors import ChannelError
from channels.inbox.checks import check, wants_check
from channels.port import CheckResult
from channels.slack.api import Api, connect
from channels.slack.payloads import Bot
from channels.slack.scopes import SCOPES
from channels.slack.settings import SlackSettings
from egress.guard import EgressGuard

_OAUTH = "https://api.slack.com/apps: your app, OAuth & Permissions"


async def probe(settings: SlackSettings, guard: EgressGuard) -> tuple[CheckResult, ...]:
    """Check a configured app without sending a message; return one result per check."""
    async with connect(settings, guard) as api:
        findings = await _token_checks(api) if settings.bot_token else [_installation_check()]
        findings.append(await _socket_check(api) if settings.mode == "socket" else _http_check())
    return tuple(findings)


async def _token_checks(api: Api) -> list[CheckResult]:
    try:
        bot, scopes = await api.auth_test()
    except ChannelError as error:
        remedy = f"copy the Bot User OAuth Token (xoxb-…) from {_OAUTH}; check base_url"
        return [check("bot token", "", problem=str(error), remedy=remedy)]
    return [_identity_check(bot), _scopes_check(scopes)]


def _installation_check() -> CheckResult:
    return check(
        "installation",
        "workspaces install the app at /slack/install; check on Slack's page that the redirect URL "
        "ends in /slack/oauth_redirect (of several apps: /channels/ID/install and /channels/ID/oauth)",
    )


def _identity_check(bot: Bot) -> CheckResult:
    return check(
        "bot token",
        f"user {bot.id} of workspace {bot.team or '?'}",
        problem="" if bot.bot_id else f"this is the token of the user {bot.id}, not of a bot",
        remedy=f"copy the Bot User OAuth Token (xoxb-…), not the User OAuth Token, from {_OAUTH}",
    )


def _scopes_check(scopes: frozenset[str] | None) -> CheckResult:
    """List each missing scope and what does not work without it."""
    if scopes is None:
        return check("scopes", "Slack did not report the token's scopes")
    detail = f"all {len(SCOPES)} needed scopes are granted"
    remedy = f"{_OAUTH}, Bot Token Scopes: add them, then Reinstall to Workspace"
    return wants_check("scopes", SCOPES, [*scopes], detail=detail, remedy=remedy)


async def _socket_check(api: Api) -> CheckResult:
    try:
        await api.socket_url()
    except ChannelError as error:
        remedy = (
            "https://api.slack.com/apps: your app, Socket Mode: enable it; Basic Information, "
            "App-Level Tokens: create one with connections:write (xapp-…)"
        )
        return check("socket mode", "", problem=str(error), remedy=remedy)
    return check("socket mode", "the app-level token opens a socket")


def _http_check() -> CheckResult:
    return check(
        "posts",
        "signed requests are accepted; check on Slack's page that the URL is known: "
        "Event Subscriptions, Request URL must show Verified",
    )
