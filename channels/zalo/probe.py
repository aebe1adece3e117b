"""Check a configured bot or Official Account: its token, and how updates arrive."""

from __future__ import annotations

from channels.errors import ChannelError
from channels.inbox.checks import check, host_of, posts_check, refused
from channels.inbox.text import clean, mapping
from channels.port import ChannelState, CheckResult
from channels.zalo.api import BotApi, connect
from channels.zalo.settings import ZaloSettings
from egress.guard import EgressGuard

_ENTER_WEBHOOK = "enter the channel's address at developers.zalo.me, Webhook"
_NOT_ASKED = (
    "not asked: a question would use up the refresh token. The running gateway asks: `dovecote status` shows "
    "the channel in trouble if Zalo refuses the token"
)


class _NoState(ChannelState):
    """Keeps nothing: a probe must not use up a refresh token that it cannot replace."""

    async def get(self, name: str) -> str | None:
        """Return nothing."""
        del name
        return None

    async def set(self, values: object) -> None:
        """Refuse, before the old refresh token is lost."""
        del values

    async def list(self, prefix: str = "") -> dict[str, str]:
        """Return nothing."""
        del prefix
        return {}


async def probe(settings: ZaloSettings, guard: EgressGuard) -> tuple[CheckResult, ...]:
    """Ask Zalo about the bot and return one result per check, with a remedy for each problem."""
    if settings.platform == "oa" and settings.access_token is None:
        return (check("official account", _NOT_ASKED), check("webhook", _ENTER_WEBHOOK))
    without_renewal = settings.model_copy(update={"refresh_token": None})
    async with connect(without_renewal, _NoState(), guard) as api:
        try:
            bot = await api.identify()
            hook = mapping(await api.call("getWebhookInfo", {})) if isinstance(api, BotApi) else {}
        except ChannelError as error:
            return (refused("zalo", error, operator="Copy the token again."),)
    if settings.platform == "oa":
        posts = check("webhook", _ENTER_WEBHOOK)
    else:
        url = clean(hook.get("url"))
        polled = (
            f"a webhook is set ({host_of(url)}); the gateway removes it when it starts" if url else "ready"
        )
        posts = posts_check(settings, url, polled=polled)
    return (check("bot", f"{bot.name} ({bot.id})"), posts)
