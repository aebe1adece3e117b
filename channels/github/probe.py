"""Check a configured app: its key, permissions, events, installations and webhook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from channels.errors import ChannelError
from channels.github.api import Api, connect
from channels.github.settings import GitHubSettings
from channels.github.threads import SUBJECTS
from channels.inbox.checks import check, posts_check, refused, wants_check
from channels.inbox.text import clean, mapping
from channels.port import CheckResult
from egress.guard import EgressGuard

_PLACES = "issues", "pull_requests", "discussions"
PERMISSIONS = {f"{one}: write": f"it cannot answer in {one.replace('_', ' ')}" for one in _PLACES}
_KEY = "Check app_id and private_key: the app's page, General, Private keys."
_PERMISSIONS = "The app's page, Permissions & events; then accept the change where the app is installed."
_SECRET = "Make webhook_secret equal to the secret of the app's webhook."  # noqa: S105 - a remedy


async def probe(settings: GitHubSettings, guard: EgressGuard) -> tuple[CheckResult, ...]:
    """Ask GitHub about the app and return one result per check, with a remedy for each problem."""
    async with connect(settings, guard) as api:
        try:
            app = mapping(await api.call("GET", "/app"))
            installations = [row async for row in api.rows("/app/installations?per_page=100")]
            hook = mapping(await api.call("GET", "/app/hook/config"))
        except ChannelError as error:
            return (refused("github", error, operator=_KEY),)
        deliveries = await _deliveries_check(api, settings)
    name = check("app", f"@{clean(app.get('slug'))}")
    posts = posts_check(settings, clean(hook.get("url")), polled="the log of deliveries is polled")
    return (name, *_grants(app, installations), posts, deliveries)


def _grants(app: Mapping[str, Any], installations: Sequence[Mapping[str, Any]]) -> list[CheckResult]:
    events, detail = dict.fromkeys(SUBJECTS, ""), "all are subscribed"
    found = [_permissions_check("permissions", app)]
    found += [wants_check("events", events, app.get("events"), detail=detail, remedy=_PERMISSIONS)]
    for row in installations:
        owner = clean(mapping(row.get("account")).get("login"))
        found.append(_permissions_check(f"installation {owner}", row))
        if row.get("suspended_at"):
            remedy = f"The settings of {owner}, GitHub Apps, Configure: unsuspend the app."
            found[-1] = check(f"installation {owner}", "", problem="it is suspended", remedy=remedy)
    nowhere = check("installation", "", problem="installed nowhere", remedy="The app's page, Install App.")
    return found if installations else [*found, nowhere]


def _permissions_check(subject: str, row: Mapping[str, Any]) -> CheckResult:
    granted = [f"{name}: {level}" for name, level in mapping(row.get("permissions")).items()]
    return wants_check(subject, PERMISSIONS, granted, detail="all that it needs", remedy=_PERMISSIONS)


async def _deliveries_check(api: Api, settings: GitHubSettings) -> CheckResult:
    """Report how the latest delivery was answered."""
    try:
        latest = await anext(api.rows("/app/hook/deliveries?per_page=1"), mapping(None))
    except ChannelError as error:
        return check("deliveries", "", problem=str(error), remedy="Activate the webhook.")
    code = latest.get("status_code")
    detail = f"the latest was answered with {code}" if latest else "none yet"
    is_refused = settings.takes_posts and code == HTTPStatus.UNAUTHORIZED
    return check("deliveries", detail, problem=detail if is_refused else "", remedy=_SECRET)
