"""Check a configured app: its key, permissions, events, installations and webhook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from channels.errors import ChannelError
from channels.github.api import Api, connect
from channels.github.settings import GitHubSettings
from channels.github.threads import EVENTS
from channels.inbox.text import clean, mapping
from channels.port import CheckResult
from egress.guard import EgressGuard

PERMISSIONS = {
    "issues": "it cannot answer in issues",
    "pull_requests": "it cannot answer in pull requests and reviews",
    "discussions": "it cannot answer in discussions",
}
_KEY = "Check app_id and private_key: the app's page, General, Private keys."
_PERMISSIONS = "The app's page, Permissions & events; then accept the change where the app is installed."


async def probe(settings: GitHubSettings, guard: EgressGuard) -> tuple[CheckResult, ...]:
    """Ask GitHub about the app and return one result per check, with a remedy for each problem."""
    async with connect(settings, guard) as api:
        try:
            app = mapping(await api.as_app("GET", "/app"))
            installations, _ = await api.as_app_paged("/app/installations?per_page=100")
            hook = mapping(await api.as_app("GET", "/app/hook/config"))
        except ChannelError as error:
            remedy = _KEY if error.remedy == "operator" else "Check base_url, and that it can be reached."
            return (CheckResult(subject="github", ok=False, detail=str(error), remedy=remedy),)
        secret = await _delivery_check(api, settings)
    name = CheckResult(subject="app", ok=True, detail=f"@{clean(app.get('slug'))}")
    return (name, *_grants(app, installations), _hook_check(hook, settings), secret)


def _grants(app: Mapping[str, Any], installations: Iterable[Any]) -> list[CheckResult]:
    found = [_permissions_check("permissions", app), _events_check(app)]
    rows = [mapping(one) for one in installations]
    for row in rows:
        owner = clean(mapping(row.get("account")).get("login"))
        check = _permissions_check(f"installation {owner}", row)
        if row.get("suspended_at"):
            remedy = f"The settings of {owner}, GitHub Apps, Configure: unsuspend the app."
            check = CheckResult(subject=check.subject, ok=False, detail="it is suspended", remedy=remedy)
        found.append(check)
    if not rows:
        remedy = "The app's page, Install App."
        found.append(CheckResult(subject="installation", ok=False, detail="installed nowhere", remedy=remedy))
    return found


def _permissions_check(subject: str, row: Mapping[str, Any]) -> CheckResult:
    granted = mapping(row.get("permissions"))
    missing = [f"{name}: write ({why})" for name, why in PERMISSIONS.items() if granted.get(name) != "write"]
    detail = f"missing {'; '.join(missing)}" if missing else "issues, pull requests and discussions: write"
    return CheckResult(subject=subject, ok=not missing, detail=detail, remedy=_PERMISSIONS if missing else "")


def _events_check(app: Mapping[str, Any]) -> CheckResult:
    granted = app.get("events")
    missing = [name for name in EVENTS if name not in (granted if isinstance(granted, list) else [])]
    detail = f"not subscribed: {', '.join(missing)}" if missing else "all are subscribed"
    return CheckResult(
        subject="events", ok=not missing, detail=detail, remedy=_PERMISSIONS if missing else ""
    )


def _hook_check(hook: Mapping[str, Any], settings: GitHubSettings) -> CheckResult:
    url, subject = clean(hook.get("url")).rstrip("/"), "webhook"
    if settings.mode == "polling":
        return CheckResult(subject=subject, ok=True, detail="events are polled from GitHub's delivery log")
    if settings.webhook_url is None or url == settings.webhook_url:
        return CheckResult(subject=subject, ok=bool(url), detail=url or "no URL", remedy="Set public_url.")
    return CheckResult(
        subject=subject,
        ok=False,
        detail=f"GitHub posts to {url or 'no URL'}, the gateway is at {settings.webhook_url}",
        remedy="Start the gateway, which registers its URL.",
    )


async def _delivery_check(api: Api, settings: GitHubSettings) -> CheckResult:
    """Report how the latest delivery was answered."""
    try:
        rows, _ = await api.as_app_paged("/app/hook/deliveries?per_page=1")
    except ChannelError as error:
        return CheckResult(subject="deliveries", ok=False, detail=str(error), remedy="Activate the webhook.")
    latest = mapping(rows[0]) if rows else {}
    code = latest.get("status_code")
    is_refused = settings.mode == "webhook" and bool(latest) and code == 401  # noqa: PLR2004
    detail = f"the latest was answered with {code}" if latest else "none yet"
    remedy = "Make webhook_secret equal to the secret of the app's webhook." if is_refused else ""
    return CheckResult(subject="deliveries", ok=not is_refused, detail=detail, remedy=remedy)
