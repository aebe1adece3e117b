"""A connection that outlives its channel answers as the port promises, whatever a closed library does."""

from __future__ import annotations

import asyncio
from inspect import isfunction

import pytest

from channels.closing import (
    CallsInProgress,
    ClosableInstallations,
    ClosableReceiver,
    ClosableSender,
)
from channels.errors import Ambiguous, Unreachable
from channels.message import Address, Reply, SentMessage, Update
from channels.port import (
    Accept,
    ChannelInstallations,
    Receiver,
    ReceiverStatus,
    Sender,
    WebhookRequest,
    WebhookResponse,
)

ADDRESS = Address(channel="chn_1", room="7")
REPLY = Reply(text="hello", key="dlv_1.0")
SENT = SentMessage(platform_id="1")


class GatedSender(Sender):
    """Sends when its gate opens, as a slow platform does."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Wait for the gate."""
        self.is_asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return SENT


class GatedReceiver(Receiver):
    """Reads a posted request when its gate opens, as one does that asks the platform first."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive nothing."""

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Wait for the gate."""
        self.is_asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return WebhookResponse(status=200)


@pytest.mark.parametrize(
    ("port", "guard"),
    [
        (Sender, ClosableSender),
        (Receiver, ClosableReceiver),
        (ChannelInstallations, ClosableInstallations),
    ],
)
def test_every_call_of_the_port_is_guarded(port: type, guard: type) -> None:
    """A new method of a port cannot be forgotten."""
    promised = {name for name, one in vars(port).items() if isfunction(one) and not name.startswith("_")}
    bases = guard.__mro__[: guard.__mro__.index(port)]
    assert promised <= {name for one in bases for name in vars(one)}


async def accept_nothing(update: Update) -> None:
    """Refuse every update."""
    raise AssertionError(update)


@pytest.mark.parametrize(("error", "status"), [(None, 200), (RuntimeError("Session is closed"), 503)])
async def test_a_posted_request_ends_before_its_channel(error: Exception | None, status: int) -> None:
    """A request in progress is answered; one that the end breaks, or that comes later, is to be repeated."""
    gated, calls = GatedReceiver(), CallsInProgress()
    gated.error = error
    receiver = ClosableReceiver(gated, calls)
    request = WebhookRequest(headers={}, body=b"")
    receiving = asyncio.create_task(receiver.receive(request, accept_nothing))
    await gated.is_asked.wait()
    asyncio.get_running_loop().call_soon(gated.gate.set)
    await calls.close()
    assert receiving.done()
    assert (await receiving).status == status
    assert (await receiver.receive(request, accept_nothing)).status == 503


async def _end_while_sending(gated: GatedSender) -> asyncio.Task[SentMessage]:
    """End a channel while a call is in progress, and return the call."""
    calls = CallsInProgress()
    sender = ClosableSender(gated, calls)
    sending = asyncio.create_task(sender.send(ADDRESS, REPLY))
    await gated.is_asked.wait()
    closing = asyncio.create_task(calls.close())
    closing.add_done_callback(lambda _: ended.append(sending.done()))
    ended: list[bool] = []
    asyncio.get_running_loop().call_soon(gated.gate.set)
    await closing
    assert ended == [True]
    with pytest.raises(Unreachable):
        await sender.send(ADDRESS, REPLY)
    return sending


async def test_the_end_waits_for_calls_in_progress() -> None:
    """A message that is on its way arrives, and its id is known."""
    assert await (await _end_while_sending(GatedSender())) == SENT


async def test_a_call_that_the_end_breaks_may_have_been_carried_out() -> None:
    """Callers never see the library's own error of a closed session."""
    gated = GatedSender()
    gated.error = RuntimeError("Session is closed")
    with pytest.raises(Ambiguous):
        await (await _end_while_sending(gated))


async def test_errors_of_an_open_channel_stay_what_they_are() -> None:
    """A defect of an adapter is not hidden as a channel's end."""
    gated = GatedSender()
    gated.error = RuntimeError("a defect")
    gated.gate.set()
    with pytest.raises(RuntimeError, match="a defect"):
        await ClosableSender(gated, CallsInProgress()).send(ADDRESS, REPLY)
