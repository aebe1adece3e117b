"""The author of commits: the person whose message or approval the turn is about."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.accounts.persons import platform_of
from gateway.store.accounts import accounts, persons
from gateway.store.conversations import conversations
from gateway.tools.tool import ToolContext

MAX_NAME = 100
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f<>\\\"]+")
_LOCAL = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class GitAuthor:
    """A name and an address; the address ends with `.invalid`, because platforms tell no real one."""

    name: str
    email: str

    def environment(self) -> dict[str, str]:
        """Return the variables by which git takes it as author and committer."""
        return {
            f"GIT_{role}_{part}": value
            for role in ("AUTHOR", "COMMITTER")
            for part, value in (("NAME", self.name), ("EMAIL", self.email))
        }


async def author_of(context: ToolContext) -> GitAuthor:
    """Return the author of a turn's commits: its asker, or the agent of a turn without an asker."""
    turn = context.turn
    if not turn.asker:
        name = context.agent.name if context.agent is not None else "agent"
        return make_author(name, turn.agent, "agent")
    origin_name = str((turn.origin or {}).get("name") or "")
    async with context.jobs.read() as connection:
        talk = await conversations.get_by_id(connection, turn.conversation)
        platform = await platform_of(connection, talk)
        if platform is None:
            key = await accounts.get_key(connection, turn.account, turn.asker)
            return make_author(key.name if key is not None else "", turn.asker, "api")
        seen = await persons.get_identity(connection, turn.account, f"{platform}:{turn.asker}")
    return make_author(origin_name or (seen.name if seen is not None else ""), turn.asker, platform)


def make_author(name: str, person: str, platform: str) -> GitAuthor:
    """Return an author whose name and address git accepts, whatever the person is called."""
    shown = " ".join(_UNUSABLE.sub(" ", name).split())[:MAX_NAME].strip(" .,:;'")
    local, domain = (_LOCAL.sub("-", part).strip("-.") or "unknown" for part in (person, platform))
    return GitAuthor(name=shown or local[:MAX_NAME], email=f"{local[:64]}@{domain[:100]}.invalid")
