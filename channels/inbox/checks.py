"""Results of `channels test` that adapters share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from channels.errors import ChannelError
from channels.inbox.settings import PostedSettings
from channels.port import CheckResult
from egress.guard import EgressGuard

A = TypeVar("A")

RETRY = "Check that base_url can be reached from this host, then try again."
GIVE_UP = "Read the platform's message."


def check(subject: str, detail: str, *, problem: str = "", remedy: str = "") -> CheckResult:
    """Return a check that succeeds with a detail, or fails with its problem and remedy."""
    if problem:
        return CheckResult(subject=subject, ok=False, detail=problem, remedy=remedy)
    return CheckResult(subject=subject, ok=True, detail=detail)


def refused(subject: str, error: ChannelError, *, operator: str, retry: str = RETRY) -> CheckResult:
    """Return the failed check of a call; `operator` is the remedy for a refused token."""
    remedies = {"operator": operator, "retry": retry, "give_up": GIVE_UP}
    return check(subject, "", problem=str(error), remedy=remedies[error.remedy])


async def problem_of(call: Awaitable[object], *, expected: str = "") -> str:
    """Await a call and return the text of its ChannelError; "" without one, or if it is the expected text."""
    try:
        await call
    except ChannelError as error:
        return "" if str(error) == expected else str(error)
    return ""


def probe_with(
    connect: Callable[[Any, EgressGuard], AbstractAsyncContextManager[A]],
    identify: Callable[[A], Awaitable[str]],
    *,
    operator: str,
    retry: str = RETRY,
) -> Callable[[Any, EgressGuard], Awaitable[tuple[CheckResult, ...]]]:
    """Return a probe that opens the API and asks for the bot's name; `operator` is as for `refused`."""

    async def probe(settings: Any, guard: EgressGuard) -> tuple[CheckResult, ...]:
        try:
            async with connect(settings, guard) as api:
                return (check("bot", await identify(api)),)
        except ChannelError as error:
            return (refused("bot", error, operator=operator, retry=retry),)

    return probe


def wants_check(
    subject: str, wanted: Mapping[str, str], granted: object, *, detail: str, remedy: str
) -> CheckResult:
    """Report what is wanted and not in the list of what is granted, each with its reason."""
    given = granted if isinstance(granted, list) else []
    missing = [f"{name} ({why})" if why else name for name, why in wanted.items() if name not in given]
    problem = f"missing: {', '.join(missing)}" if missing else ""
    return check(subject, detail, problem=problem, remedy=remedy)


def posts_check(settings: PostedSettings, url: str, *, polled: str) -> CheckResult:
    """Compare the URL to which a platform posts with the gateway's, which the gateway registers at start."""
    if settings.polls:
        return check("polling", polled)
    if not url and settings.webhook_url is None:
        return check("webhook", "", problem="no URL", remedy="Set public_url, and start the gateway.")
    if settings.webhook_url in {None, url.rstrip("/")}:
        return check("webhook", f"posts go to {url}")
    place = f"posts go to another URL, at {host_of(url)}" if url else "no URL"
    remedy = "Start the gateway, which registers its own URL, and check who else uses this bot."
    return check("webhook", "", problem=place, remedy=remedy)


def host_of(url: str) -> str:
    """Return the host of a URL; its path may contain someone's secret."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2] or "an invalid URL"
