"""Check a configured bot or Official Account: its token, and how updates arrive."""

from __future__ import annotations

from channels.errors import ChannelError
from channels.inbox.text import clean, mapping
from channels.port import ChannelState, CheckResult
from channels.zalo.api import BotApi, connect
from channels.zalo.settings import ZaloSettings
from egress.guard import EgressGuard


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
        detail = "not asked: a question would use up the refresh token"
        return (CheckResult(subject="official account", ok=True, detail=detail),)
    without_renewal = settings.model_copy(update={"refresh_token": None})
    async with connect(without_renewal, _NoState(), guard) as api:
        try:
            bot = await api.identify()
            hook = mapping(await api.call("getWebhookInfo", {})) if isinstance(api, BotApi) else {}
        except ChannelError as error:
            remedy = "Copy the token again." if error.remedy == "operator" else "Check the URLs."
            return (CheckResult(subject="zalo", ok=False, detail=str(error), remedy=remedy),)
    name = CheckResult(subject="bot", ok=True, detail=f"{bot.name} ({bot.id})")
    return (name, _delivery_check(settings, clean(hook.get("url")).rstrip("/")))


def _delivery_check(settings: ZaloSettings, url: str) -> CheckResult:
    if settings.platform == "oa":
        detail = "enter the channel's address at developers.zalo.me, Webhook"
        return CheckResult(subject="webhook", ok=True, detail=detail)
    if settings.mode == "polling":
        detail = f"a webhook is set ({url}); the gateway removes it when it starts" if url else "ready"
        return CheckResult(subject="polling", ok=True, detail=detail)
    is_ours = settings.webhook_url is None or url == settings.webhook_url
    remedy = "" if is_ours else "Start the gateway, which registers its URL."
    return CheckResult(subject="webhook", ok=is_ours, detail=url or "no URL", remedy=remedy)
