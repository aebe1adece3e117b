"""`dovecote channels test`: the token, its scopes, and the way events come in."""

from __future__ import annotations

from channels.errors import ChannelError
from channels.port import Finding
from channels.slack.api import Api, connect
from channels.slack.settings import SlackSettings


async def probe(settings: SlackSettings) -> tuple[Finding, ...]:
    """Look at a configured app, without sending anything."""
    async with connect(settings) as api:
        findings = [await _token(api)]
        findings.append(await _socket(api) if settings.mode == "socket" else _posts())
    return tuple(findings)


async def _token(api: Api) -> Finding:
    try:
        bot = await api.identify()
    except ChannelError as error:
        return Finding(
            subject="bot token",
            ok=False,
            detail=str(error),
            remedy="copy the Bot User OAuth Token from OAuth & Permissions; check base_url",
        )
    return Finding(subject="bot token", ok=True, detail=f"user {bot.id} of workspace {bot.team}")


async def _socket(api: Api) -> Finding:
    try:
        await api.socket_url()
    except ChannelError as error:
        return Finding(
            subject="socket mode",
            ok=False,
            detail=str(error),
            remedy="switch on Socket Mode, and make an app-level token with connections:write",
        )
    return Finding(subject="socket mode", ok=True, detail="a connection is offered")


def _posts() -> Finding:
    return Finding(
        subject="posts",
        ok=True,
        detail="signed posts are taken; Slack tells only on its own page whether it knows our address",
    )
