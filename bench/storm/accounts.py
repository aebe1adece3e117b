"""The accounts of a storm: two that stay, and visitors, which are deleted while they are used."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from bench.storm.bodies import MODEL, SHELL
from bench.storm.choices import DEFAULT, THINKER, Choices

OPERATOR_KEY = "an-admin-key-of-the-operator-of-a-storm"
OPERATOR = {"Authorization": f"Bearer {OPERATOR_KEY}"}
"""The headers of the operator's requests."""

LASTING = (
    ("sandboxes", "asking", {"provider": "host", "permissionMode": "ask"}),
    ("sandboxes", "working", {"provider": "host", "permissionMode": "bypass"}),
    ("agents", THINKER, {"model": MODEL, "sandbox": "asking"}),
    ("agents", DEFAULT, {"model": SHELL, "sandbox": "working"}),
)
"""Records of each account that no request deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StormAccount:
    """An account: its key, and the ids that its requests choose."""

    key: str
    choices: Choices

    @property
    def headers(self) -> dict[str, str]:
        """The headers of its requests."""
        return {"Authorization": f"Bearer {self.key}"}


async def create_account(session: aiohttp.ClientSession, url: str, name: str) -> tuple[str, str]:
    """Create an account as the operator; returns its id and key."""
    async with session.post(f"{url}/accounts", json={"name": name}, headers=OPERATOR) as answer:
        answer.raise_for_status()
        made = await answer.json()
    return str(made["id"]), str(made["key"])


async def prepare_account(session: aiohttp.ClientSession, url: str, account: StormAccount) -> None:
    """Add the records that no request deletes, and protect the account's key; raises aiohttp's errors."""
    for path, name, config in LASTING:
        body = {"name": name, "config": config}
        async with session.post(f"{url}/accounts/me/{path}", json=body, headers=account.headers) as answer:
            if answer.status != HTTPStatus.CONFLICT:
                answer.raise_for_status()
    async with session.get(f"{url}/accounts/me/keys", headers=account.headers) as answer:
        answer.raise_for_status()
        account.choices.protected.update(key["id"] for key in (await answer.json())["items"])


async def delete_account(session: aiohttp.ClientSession, url: str, account: str) -> tuple[int, str]:
    """Delete an account as the operator; returns the status and the answer."""
    async with session.delete(f"{url}/accounts/{account}", headers=OPERATOR) as answer:
        return answer.status, await answer.text()
