"""Wake a container while the engine's view of it is behind for a moment."""

from __future__ import annotations

import pytest
from aiodocker.exceptions import DockerError
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestServer

from sandbox.docker.engine import ExecSpec, open_engine
from sandbox.docker.settings import DockerSettings
from sandbox.errors import SandboxGone
from sandbox.model import SandboxId

ID = SandboxId("box")
EXEC_SPEC = ExecSpec(argv=["true"], environment=[], directory="/")
NOT_FOUND = 404


class LaggingEngine:
    """An engine that notices a pause late: it refuses to start what already runs."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.calls: list[str] = []

    def app(self) -> web.Application:
        """Return its API, as far as waking needs it; a process that is started is a made-up one."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/version", self._version),
                web.get("/v1.45/containers/box/json", self._show),
                web.post("/v1.45/containers/box/exec", self._exec),
                web.post("/v1.45/containers/box/unpause", self._unpause),
                web.post("/v1.45/containers/box/pause", self._pause),
                web.post("/v1.45/containers/box/stop", self._stop),
                web.post("/v1.45/exec/one/start", self._started),
            ]
        )
        return app

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.45"})

    async def _show(self, _: web.Request) -> web.Response:
        return web.json_response({"State": {"Paused": bool(self.refusals), "Running": True}})

    async def _exec(self, _: web.Request) -> web.Response:
        self.calls.append("exec")
        if self.refusals:
            self.refusals -= 1
            return web.json_response({"message": "Container box is paused"}, status=409)
        return web.json_response({"Id": "one"}, status=201)

    async def _unpause(self, _: web.Request) -> web.Response:
        self.calls.append("unpause")
        return web.json_response({"message": "Container box is not paused"}, status=500)

    async def _pause(self, _: web.Request) -> web.Response:
        return web.json_response({"message": "Container box is already paused"}, status=409)

    async def _stop(self, _: web.Request) -> web.Response:
        return web.json_response({"message": "No such container: box"}, status=NOT_FOUND)

    async def _started(self, _: web.Request) -> web.Response:
        self.calls.append("start")
        return web.json_response({"message": "No such exec instance"}, status=NOT_FOUND)


async def test_an_engine_that_is_behind_is_asked_again() -> None:
    """A waking that was refused as done already is no fault, and the process is started once."""
    late = LaggingEngine(refusals=3)
    async with TestServer(late.app()) as server, open_engine(_settings(server)) as engine:
        with pytest.raises(DockerError) as refused:
            await engine.start(ID, user="1000", exec_spec=EXEC_SPEC)
    assert refused.value.status == NOT_FOUND
    assert late.calls == ["exec", "unpause", "exec", "unpause", "exec", "exec", "start"]


async def test_one_that_stays_behind_is_believed() -> None:
    """The engine's error is reported in the end; the retries are bounded."""
    late = LaggingEngine(refusals=1000)
    async with TestServer(late.app()) as server, open_engine(_settings(server)) as engine:
        with pytest.raises(DockerError, match="paused"):
            await engine.start(ID, user="1000", exec_spec=EXEC_SPEC)
        with pytest.raises(SandboxGone):
            await engine.start(ID, user="1000", exec_spec=EXEC_SPEC, resume=False)
    assert late.calls.count("start") == 0


async def test_resting_twice_is_no_fault() -> None:
    """The second caller that wakes a container succeeds; other refusals are reported."""
    paused = DockerSettings(suspend="pause")
    late = LaggingEngine(refusals=0)
    async with TestServer(late.app()) as server:
        async with open_engine(_settings(server, paused)) as engine:
            await engine.suspend(ID)
        async with open_engine(_settings(server)) as engine:
            with pytest.raises(SandboxGone):
                await engine.suspend(ID)


def _settings(server: BaseTestServer, settings: DockerSettings | None = None) -> DockerSettings:
    address = f"http://127.0.0.1:{server.port}"
    return (settings or DockerSettings()).model_copy(update={"host": address})
