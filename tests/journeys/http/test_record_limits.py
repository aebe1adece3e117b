"""An account creates a limited number of records, webhooks and keys."""

from __future__ import annotations

from pathlib import Path

from api_server import open_api_server
from gateway.web.http.context import WebLimits

LIMITS = WebLimits(auth_failures=1000, records=3, webhooks=2)
WEBHOOK: dict[str, object] = {"url": "https://example.org/", "events": ["agent.finished"]}
CREATED: dict[str, dict[str, object]] = {
    "agents": {"config": {"model": "builtin:shell"}},
    "workspaces": {},
    "skills": {},
    "keys": {"scopes": ["read"]},
    "webhooks": WEBHOOK,
}


async def test_an_account_that_has_its_limit_is_refused_another_record(tmp_path: Path) -> None:
    """The 429 names the setting; what is deleted makes room again, and other accounts have their own."""
    async with open_api_server(tmp_path, bounds=LIMITS) as face:
        mine = face.mine
        for plural, body in CREATED.items():
            path, limit = f"/accounts/me/{plural}", 2 if plural == "webhooks" else 3
            answers = [await mine.call("POST", path, body | {"name": f"n{number}"}) for number in range(4)]
            refused = [one for one in answers if one.status != 201]
            assert {one.status for one in refused} == {429}, (plural, [one.body for one in answers])
            setting = "webhook_limit" if plural == "webhooks" else "record_limit"
            assert f"has {limit} " in refused[-1].body["detail"]
            assert setting in refused[-1].body["detail"]
            assert len((await mine.call("GET", path)).body["items"]) == limit
        webhook = (await mine.call("GET", "/accounts/me/webhooks")).body["items"][0]["id"]
        assert (await mine.call("DELETE", f"/accounts/me/webhooks/{webhook}")).status == 204
        assert (await mine.call("POST", "/accounts/me/webhooks", WEBHOOK | {"name": "again"})).status == 201
        assert (await face.other.call("POST", "/accounts/me/webhooks", WEBHOOK)).status == 201
