"""Check a configured page: its token, and how messages arrive."""

from __future__ import annotations

from channels.errors import ChannelError
from channels.inbox.checks import check, refused
from channels.pancake.api import connect
from channels.pancake.settings import PancakeSettings
from channels.port import CheckResult
from egress.guard import EgressGuard


async def probe(settings: PancakeSettings, guard: EgressGuard) -> tuple[CheckResult, ...]:
    """Ask Pancake for the page's conversations and return one result per check."""
    async with connect(settings, guard) as api:
        try:
            found = await api.list_conversations()
        except ChannelError as error:
            return (refused("pancake", error, operator="Copy the page's token again."),)
    kinds = [str(row.get("type")) for row in found]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) or "none yet"
    page = check("page", f"{settings.page_id}: conversations {counts}")
    answers = settings.groups == "always" or bool(settings.page_name)
    detail = "are answered" if answers else 'are ignored: set page_name, or groups = "always"'
    return (page, check("comments", detail))
