"""`/readyz` is for restarts and alerts, and with `exclude` for a load balancer."""

from __future__ import annotations

from pathlib import Path

from api_server import open_api_server
from gateway.observability.readiness import Health


async def test_a_load_balancer_may_leave_the_channels_out(tmp_path: Path) -> None:
    """Errors of channels are still reported; other missing parts count."""
    checks = {"database": "ok", "channels": "not receiving: bot (ConnectedElsewhere)"}

    async def health() -> Health:
        return Health(ready=all(state == "ok" for state in checks.values()), checks=dict(checks))

    async with open_api_server(tmp_path, health=health) as face:
        deaf = await face.nobody.call("GET", "/readyz")
        assert (deaf.status, deaf.body["status"], deaf.body["checks"]) == (503, "not ready", checks)
        excused = await face.nobody.call("GET", "/readyz?exclude=channels")
        assert (excused.status, excused.body["checks"]) == (200, {"database": "ok"})
        assert excused.body["degraded"] == {"channels": "not receiving: bot (ConnectedElsewhere)"}
        assert (await face.nobody.call("GET", "/readyz?exclude=database")).status == 422
        checks["database"] = "away"
        assert (await face.nobody.call("GET", "/readyz?exclude=channels")).status == 503
