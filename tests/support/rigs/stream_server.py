"""The sockets and event streams of the gateway over any stream, without the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from delivery.broker.memory_events import MemoryEvents
from delivery.events.event import Event, EventType
from delivery.events.port import EventStream
from gateway.accounts.api_keys import Principal
from gateway.web.http.problems import HttpProblem, problem_middleware
from gateway.web.http.rate_limit import RequestRateLimiter
from gateway.web.stream import sse, websocket
from gateway.web.stream.frames import ApproveFrame, CancelFrame, ProtocolError, SendFrame
from gateway.web.stream.readers import StreamReaders
from gateway.web.stream.services import StreamServices, SubmittedMessage
from gateway.web.stream.sse import EventQuery

KEY = "good"
READ_ONLY = "reading"
SCOPES = {KEY: frozenset({"read", "chat"}), READ_ONLY: frozenset({"read"})}
"""The scopes of the keys at the start."""

RETAINED = 8
"""The events that a stream of these tests keeps for each conversation."""


@dataclass(slots=True)
class StreamServer:
    """A running face: conversations are called `cnv_…`, or `mine` for `cnv_mine`."""

    events: EventStream
    readers: StreamReaders = field(default_factory=StreamReaders)
    valid: dict[str, frozenset[str]] = field(default_factory=lambda: dict(SCOPES))
    """The keys that are valid, and their scopes."""
    sent: list[SendFrame] = field(default_factory=list)
    decided: list[ApproveFrame] = field(default_factory=list)
    cancelled: list[CancelFrame] = field(default_factory=list)
    failure: Exception | None = None
    """The error of every message that is sent."""
    rate_limiter: RequestRateLimiter = field(default_factory=lambda: RequestRateLimiter(60_000))
    url: str = ""
    unpublished: list[Event] = field(default_factory=list)

    async def authenticate(self, _request: web.Request, key: str) -> Principal:
        """Accept the valid keys."""
        if key not in self.valid:
            raise HttpProblem(401, "a valid key is needed")
        return Principal(account="acc_1", key=key, scopes=self.valid[key])

    async def live_scopes(self, keys: Collection[str]) -> dict[str, frozenset[str]]:
        """Return the scopes of the valid keys."""
        return {key: self.valid[key] for key in keys if key in self.valid}

    async def _find(self, _principal: Principal, named: str) -> str | None:
        if named == "mine":
            return "cnv_mine"
        return named if named.startswith("cnv_") else None

    async def _publish_recorded(self, account: str, conversation: str) -> None:
        """Append what a test has left unpublished, as a relay does while a page waits for it."""
        for event in self.unpublished:
            tail = await self.events.tail(conversation, account=account)
            await self.events.append(event, account=account, expected=tail.seq if tail else 0)
        self.unpublished.clear()

    async def _published_seq(self, _conversation: str) -> int:
        return 0

    async def _submit(self, _principal: Principal, said: SendFrame) -> SubmittedMessage:
        if self.failure is not None:
            raise self.failure
        if said.text == "too much":
            raise ProtocolError("too_many", "too much is waiting", {"id": said.id})
        self.sent.append(said)
        return SubmittedMessage(turn="trn_1", conversation="cnv_mine")

    async def _decide(self, _principal: Principal, decision: ApproveFrame) -> None:
        self.decided.append(decision)

    async def _cancel(self, _principal: Principal, wish: CancelFrame) -> None:
        self.cancelled.append(wish)

    def services(self) -> StreamServices:
        """Return what the sockets ask."""
        return StreamServices(
            stream=self.events,
            authenticate=self.authenticate,
            count_frame=lambda principal: self.rate_limiter.try_acquire(principal.key),
            wait_until_published=self._publish_recorded,
            published_seq=self._published_seq,
            find_conversation=self._find,
            get_or_create_conversation=self._find,
            submit=self._submit,
            decide=self._decide,
            cancel=self._cancel,
        )

    async def open_socket(self, request: web.Request) -> web.StreamResponse:
        """Answer /ws."""
        principal = None
        if "Authorization" in request.headers:
            principal = await self.authenticate(request, request.headers["Authorization"][7:])
        return await websocket.serve(request, self.services(), self.readers, principal)

    async def read_events(self, request: web.Request) -> web.StreamResponse:
        """Answer /conversations/{id}/events."""
        principal = await self.authenticate(request, request.headers.get("Authorization", "")[7:])
        query = EventQuery.model_validate(dict(request.query))
        asked = await sse.parse_request(request, self.services(), principal, request.match_info["id"], query)
        if sse.wants_stream(request):
            return await sse.serve_sse(request, self.services(), self.readers, principal, asked)
        return await sse.serve_page(self.services(), asked)

    @asynccontextmanager
    async def http(self, key: str = KEY) -> AsyncIterator[aiohttp.ClientSession]:
        """Open a client session with a key."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.url, headers=headers, connector=connector) as session:
            yield session


@asynccontextmanager
async def stream_server(events: EventStream) -> AsyncIterator[StreamServer]:
    """Serve a stream on a free port."""
    face = StreamServer(events)
    application = web.Application(middlewares=[problem_middleware])
    application.router.add_get("/ws", face.open_socket)
    application.router.add_get("/conversations/{id}/events", face.read_events)
    application.on_shutdown.append(face.readers.close_all)
    application.cleanup_ctx.append(lambda _application: face.readers.running(face.live_scopes))
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    face.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield face
    finally:
        await runner.cleanup()


async def append_events(events: MemoryEvents, count: int, conversation: str = "cnv_a") -> list[int]:
    """Append so many lasting events."""
    tail = await events.tail(conversation, account="acc_1")
    seqs, n = [tail.seq if tail else 0], tail.n if tail else 0
    for number in range(n + 1, n + count + 1):
        event = Event.now(EventType.JOB_STARTED, conversation, {"number": number}).numbered(number)
        seqs.append(await events.append(event, expected=seqs[-1], account="acc_1"))
    return seqs[1:]
