"""G9: webhooks against receivers that misbehave: what is sent, when it is sent again, and how it ends."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from standardwebhooks.webhooks import Webhook

from delivery.deliveries.attempt import FINAL, DeliveryState, Transition, next_state
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind
from delivery.deliveries.retry_schedule import WEBHOOK
from delivery.webhooks.circuit_breaker import CircuitBreakerSink, EndpointHealth
from delivery.webhooks.egress import BODY_LIMIT, Egress
from delivery.webhooks.signing import new_secret
from delivery.webhooks.sink import WebhookSink, WebhookTarget
from egress.policy import EgressPolicy
from webhook_receiver import (
    Behaviour,
    WebhookReceiver,
    never_respond,
    reset_connection,
    respond,
    stall_body,
    stream_body,
    truncate_body,
    webhook_receiver,
)

SECRET, OLD_SECRET = new_secret(), new_secret()
BODY = b'{"v":1,"id":"evt_1","type":"agent.finished","data":{"output":"done"}}'


class UnstoredHealth(EndpointHealth):
    """The health of an endpoint that has failed for a day."""

    async def record_failure(self, endpoint: str, now: datetime) -> datetime:
        """Return when that began."""
        return now - timedelta(days=1)

    async def record_success(self, endpoint: str) -> None:
        """Store nothing."""


DELIVERY = Delivery(
    id="dlv_1",
    account="acc_1",
    event_id="evt_1",
    event_type="agent.finished",
    event_time=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    conversation="cnv_1",
    kind="webhook",
    target="whk_1",
    part=0,
    body=BODY,
    attempt=1,
)


@asynccontextmanager
async def open_sink(
    *script: Behaviour,
    tls: ssl.SSLContext | None = None,
    secrets: tuple[str, ...] = (SECRET,),
    total_seconds: float = 60.0,
) -> AsyncIterator[tuple[WebhookSink, WebhookReceiver]]:
    """Yield a webhook sink and the receiver it posts to."""
    async with (
        webhook_receiver(*script, tls=tls) as receiver,
        Egress(EgressPolicy.parse("127.0.0.0/8"), total_seconds=total_seconds) as egress,
    ):
        known = WebhookTarget(url=receiver.url, secrets=secrets)

        async def lookup(_endpoint: str) -> WebhookTarget:
            return known

        yield WebhookSink(egress=egress, find_target=lookup), receiver


async def run_delivery(sink: WebhookSink) -> tuple[list[Outcome], list[float], Transition]:
    """Live a delivery's whole life on a clock that jumps to each next attempt; return its delays too."""
    state, now = DeliveryState.PENDING, datetime.now(UTC)
    outcomes: list[Outcome] = []
    delays: list[float] = []
    while True:
        state = DeliveryState.SENDING
        outcome = await sink.send(DELIVERY)
        outcomes.append(outcome)
        judged = next_state(state, outcome, attempt=len(outcomes), schedule=WEBHOOK, now=now)
        state = judged.state
        if state in FINAL:
            return outcomes, delays, judged
        assert judged.next_at is not None
        delays.append((judged.next_at - now).total_seconds())
        now = judged.next_at


def assert_spread(delays: list[float], steps: tuple[float, ...]) -> None:
    """Hold each delay to its step ± 20 %."""
    assert len(delays) == len(steps)
    for delay, step in zip(delays, steps, strict=True):
        assert 0.8 * step <= delay <= 1.2 * step


async def test_what_is_sent_is_signed_and_described() -> None:
    """The reference library verifies it, the CloudEvents headers describe it, the body is as given."""
    async with open_sink(secrets=(SECRET, OLD_SECRET)) as (sink, receiver):
        assert (await sink.send(DELIVERY)).kind is OutcomeKind.DELIVERED
    (request,) = receiver.requests
    for secret in (SECRET, OLD_SECRET):
        assert Webhook(secret).verify(request.body, request.headers)["id"] == "evt_1"
    assert request.line == "POST /hook HTTP/1.1"
    assert request.body == BODY
    expected = {
        "content-type": "application/json",
        "webhook-id": "evt_1",
        "ce-specversion": "1.0",
        "ce-id": "evt_1",
        "ce-type": "agent.finished",
        "ce-source": "dovecote/conversations/cnv_1",
        "ce-time": "2026-01-02T03:04:05.000Z",
        "dovecote-delivery": "dlv_1",
    }
    assert {name: request.headers[name] for name in expected} == expected


async def test_errors_use_up_the_schedule_and_end_dead() -> None:
    """A receiver that always fails gets eight scheduled attempts with one id; then it is dead."""
    async with open_sink(*[respond(500)] * 20) as (sink, receiver):
        outcomes, delays, judged = await run_delivery(sink)
    assert judged.state is DeliveryState.DEAD
    assert_spread(delays, WEBHOOK.delays)
    assert len(outcomes) == len(receiver.requests) == 8
    assert {request.headers["webhook-id"] for request in receiver.requests} == {"evt_1"}
    assert all(outcome.status == 500 for outcome in outcomes)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("5", 4, 6),
        ("90", 90, 90),
        ("1e9", 3600, 3600),
        ("date", 58, 60),
        ("whenever", 4, 6),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_honoured_up_to_an_hour(
    status: int, header: str, least: float, most: float
) -> None:
    """Seconds and dates lengthen the first delay up to one hour; invalid values change nothing."""
    if header == "date":
        header = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    async with open_sink(respond(status, Retry_After=header)) as (sink, _):
        outcomes, delays, judged = await run_delivery(sink)
    assert judged.state is DeliveryState.DELIVERED
    assert len(outcomes) == 2
    assert least <= delays[0] <= most


@pytest.mark.parametrize("header", ["0", "-5", "Thu, 01 Jan 2026 00:00:00 GMT"])
async def test_a_retry_after_that_is_over_does_not_keep_an_endpoint_from_its_pause(header: str) -> None:
    """A receiver that always says so is paused like every one that fails for ten seconds."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    moments = iter([now + timedelta(seconds=seconds) for seconds in (0, 4, 8, 12, 16)])
    async with open_sink(*[respond(503, Retry_After=header)] * 5) as (sink, _):
        breaker = CircuitBreakerSink(sink, health=UnstoredHealth(), now=lambda: next(moments))
        outcomes = [await breaker.send(DELIVERY) for _ in range(5)]
    assert [one.pause_destination for one in outcomes] == [False] * 4 + [True]
    assert outcomes[-1].retry_after == 8


async def test_a_retry_after_of_another_status_is_ignored() -> None:
    """Only 429 and 503 may ask for time."""
    async with open_sink(respond(500, Retry_After="3000")) as (sink, _):
        outcome = await sink.send(DELIVERY)
    assert (outcome.retry_after, outcome.pause_destination) == (None, False)


@pytest.mark.parametrize(
    "behaviour",
    [
        never_respond,
        reset_connection,
        respond(404),
        respond(401),
        respond(502),
        respond(304),
        truncate_body(500),
        stall_body(500),
    ],
    ids=["silence", "reset", "404", "401", "502", "304", "500 broken off", "500 dripping"],
)
async def test_what_is_not_a_success_is_tried_again(behaviour: Behaviour) -> None:
    """Silence, a cut connection and every other status lead to a second attempt after five seconds."""
    # The time-out of a silent attempt; the second attempt must succeed within it on a busy machine too.
    async with open_sink(behaviour, total_seconds=5.0) as (sink, receiver):
        outcomes, delays, judged = await run_delivery(sink)
    assert judged.state is DeliveryState.DELIVERED
    assert outcomes[0].kind is OutcomeKind.RETRY
    assert_spread(delays, WEBHOOK.delays[:1])
    assert len(receiver.requests) == 2


@pytest.mark.parametrize("behaviour", [truncate_body(200), stall_body(200), respond(204)])
async def test_the_status_line_decides(behaviour: Behaviour) -> None:
    """A success stays one, however its body comes or does not come."""
    async with open_sink(behaviour, total_seconds=5.0) as (sink, _):
        assert (await sink.send(DELIVERY)).kind is OutcomeKind.DELIVERED


async def test_a_redirect_loop_is_never_entered() -> None:
    """Each redirect is one failed attempt: eight requests to the same place, none elsewhere."""
    async with webhook_receiver() as elsewhere:
        loop = respond(302, Location=elsewhere.url)
        async with open_sink(*[loop] * 20) as (sink, receiver):
            outcomes, _, judged = await run_delivery(sink)
    assert judged.state is DeliveryState.DEAD
    assert len(receiver.requests) == 8
    assert elsewhere.connections == 0
    assert "redirects are not followed" in outcomes[0].detail


async def test_gone_ends_it_and_disables_the_endpoint() -> None:
    """One 410 is enough: suppressed, and the endpoint is to be disabled."""
    async with open_sink(respond(410, body=b"moved on")) as (sink, receiver):
        outcomes, _, judged = await run_delivery(sink)
    assert (judged.state, judged.disable_endpoint) == (DeliveryState.SUPPRESSED, True)
    assert len(receiver.requests) == 1
    assert outcomes[0].excerpt == "moved on"


async def test_an_endless_body_is_not_read() -> None:
    """Of a ten-megabyte answer some tens of kilobytes are read, and a kilobyte is stored."""
    holder: list[WebhookReceiver] = []
    async with open_sink(stream_body(holder, 200, 10_000_000)) as (sink, receiver):
        holder.append(receiver)
        outcome = await sink.send(DELIVERY)
    assert outcome.kind is OutcomeKind.DELIVERED
    assert len(outcome.excerpt) == 1024
    assert receiver.written < 10_000_000


async def test_no_more_than_the_limit_is_read_of_a_body() -> None:
    """The egress client returns at most 64 KiB of a body."""
    holder: list[WebhookReceiver] = []
    async with webhook_receiver(stream_body(holder, 200, 1_000_000)) as receiver, Egress() as egress:
        holder.append(receiver)
        answer = await egress.post(receiver.url, headers={}, body=b"", trusted=True)
    assert len(answer.body) == BODY_LIMIT


async def test_a_packed_body_is_not_unpacked() -> None:
    """A compressed answer is stored as received, so it cannot grow."""
    async with open_sink(respond(500, body=b"\x1f\x8bnot really", Content_Encoding="gzip")) as (sink, _):
        assert "not really" in (await sink.send(DELIVERY)).excerpt


async def test_cookies_of_one_answer_are_not_sent_again() -> None:
    """A receiver cannot set a cookie that another delivery would send."""
    async with open_sink(respond(200, Set_Cookie="a=b; Path=/")) as (sink, receiver):
        await sink.send(DELIVERY)
        await sink.send(DELIVERY)
    assert "cookie" not in receiver.requests[1].headers


async def test_a_bad_certificate_is_a_failure_and_nothing_is_sent() -> None:
    """A receiver with an untrusted certificate gets no request; the attempt log has the reason."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with open_sink(tls=_self_signed(context)) as (sink, receiver):
        outcome = await sink.send(DELIVERY)
    assert (outcome.kind, outcome.detail) == (
        OutcomeKind.RETRY,
        "the receiver's TLS certificate is not valid: self-signed certificate",
    )
    assert not receiver.requests


async def test_a_port_without_a_listener_is_retried() -> None:
    """A refused connection is tried again later."""
    async with webhook_receiver() as receiver:
        pass
    async with Egress(EgressPolicy.parse("127.0.0.0/8")) as egress:

        async def lookup(_endpoint: str) -> WebhookTarget:
            return WebhookTarget(url=receiver.url, secrets=(SECRET,))

        outcome = await WebhookSink(egress=egress, find_target=lookup).send(DELIVERY)
    assert outcome.kind is OutcomeKind.RETRY
    assert outcome.detail.startswith("no connection")


async def test_a_refused_address_is_a_dead_letter_at_once() -> None:
    """A delivery to a private address is dead after one attempt, and the attempt log has the reason."""
    async with Egress() as egress:

        async def lookup(_endpoint: str) -> WebhookTarget:
            return WebhookTarget(url="http://169.254.169.254/latest/", secrets=(SECRET,))

        outcome = await WebhookSink(egress=egress, find_target=lookup).send(DELIVERY)
    assert outcome.kind is OutcomeKind.GIVE_UP
    assert outcome.detail.startswith("refused: the address is private")


async def test_neither_secret_nor_url_gets_into_words() -> None:
    """Outcomes and reprs contain no secret and no token of the URL."""
    canary = "https://receiver.invalid/t0ken"
    receiver = WebhookTarget(url=canary, secrets=(SECRET,))
    async with Egress(total_seconds=2) as egress:

        async def lookup(_endpoint: str) -> WebhookTarget:
            return receiver

        outcome = await WebhookSink(egress=egress, find_target=lookup).send(DELIVERY)
    assert "t0ken" not in repr(outcome)
    assert SECRET not in repr(receiver)


def _self_signed(context: ssl.SSLContext) -> ssl.SSLContext:
    """Load a certificate that vouches for itself alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _load(context, certificate, key)


def _load(
    context: ssl.SSLContext, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> ssl.SSLContext:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "both.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context.load_cert_chain(path)
    return context
