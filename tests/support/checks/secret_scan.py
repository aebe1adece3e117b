"""Looks for a secret wherever the gateway could have put it."""

from __future__ import annotations

from pathlib import Path

from api_server import ApiClient


async def read_everything(client: ApiClient) -> list[str]:
    """Return every answer there is: records, events, deliveries, jobs, traces, metrics, audit log."""
    plurals = ("agents", "sandboxes", "channels", "webhooks", "keys", "audit", "usage")
    paths = [f"/accounts/me/{plural}" for plural in plurals]
    paths += ["/jobs", "/deliveries", "/conversations", "/approvals", "/metrics", "/readyz", "/openapi.json"]
    reported = []
    for path in paths:
        answer = await client.call("GET", path)
        assert answer.status in (200, 503), (path, answer.body)
        reported.append(str(answer.body))
    for conversation in (await client.call("GET", "/conversations")).body["items"]:
        one = f"/conversations/{conversation['id']}"
        reported += [
            str((await client.call("GET", f"{one}{rest}")).body)
            for rest in ("", "/snapshot", "/events?after=0")
        ]
    for kind in ("deliveries", "jobs"):
        for item in (await client.call("GET", f"/{kind}")).body["items"]:
            record = item.get("id") or item["resultId"]
            reported += [
                str((await client.call("GET", path)).body)
                for path in (f"/{kind}/{record}", f"/trace/{record}")
            ]
    return reported


def files_containing(folder: Path, canary: str) -> list[str]:
    """Return the files below a folder that hold a text, compressed or escaped in no way."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    return [str(file) for file in files if canary.encode() in file.read_bytes()]
