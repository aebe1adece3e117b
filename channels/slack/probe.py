"""Check a configured app: the token, its scopes, and how events arrive."""

from __future__ import annotations

from channels.errors import ChannelError
from channels.inbox.checks import check, problem_of, wants_check
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
        findings = await (_token_checks(api) if settings.bot_token else _installation_checks(api))
        findings.append(await _socket_check(api) if settings.mode == "socket" else _http_check())
    return tuple(findings)


async def _token_checks(api: Api) -> list[CheckResult]:
    try:
        bot, scopes = await api.auth_test()
    except ChannelError as error:
        remedy = f"copy the Bot User OAuth Token (xoxb-…) from {_OAUTH}; check base_url"
        return [check("bot token", "", problem=str(error), remedy=remedy)]
    return [_identity_check(bot), _scopes_check(scopes)]


async def _installation_checks(api: Api) -> list[CheckResult]:
    """Exchange a code that was never given out: Slack names what is wrong with the id or the secret."""
    call = api.call("oauth.v2.access", {**api.settings.app_credentials, "code": "dovecote-check"})
    problem = await problem_of(call, expected="oauth.v2.access: invalid_code")
    detail = "Slack refuses neither of them; only an installation proves the secret"
    remedy = "copy both from https://api.slack.com/apps: your app, Basic Information; check base_url"
    how = (
        "workspaces install the app at /slack/install; check on Slack's page that the redirect URL "
        "ends in /slack/oauth_redirect (of several apps: /channels/ID/install and /channels/ID/oauth)"
    )
    credentials = check("client id and secret", detail, problem=problem, remedy=remedy)
    return [credentials, check("installation", how)]


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
    problem = await problem_of(api.socket_url())
    remedy = (
        "https://api.slack.com/apps: your app, Socket Mode: enable it; Basic Information, "
        "App-Level Tokens: create one with connections:write (xapp-…)"
    )
    return check("socket mode", "the app-level token opens a socket", problem=problem, remedy=remedy)


def _http_check() -> CheckResult:
    return check(
        "posts",
        "signed requests are accepted; check on Slack's page that the URL is known: "
        "Event Subscriptions, Request URL must show Verified",
    )
