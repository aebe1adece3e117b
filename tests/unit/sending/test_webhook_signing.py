"""Signatures of webhooks, held against the reference library of Standard Webhooks."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from delivery.webhooks.signing import BadSecret, BadSignature, new_secret, secret_key, sign, verify

ID = "evt_01"
BODY = '{"text":"grüße"}'.encode()


def test_the_reference_library_accepts_what_we_sign() -> None:
    """A receiver that uses the reference library verifies our message."""
    secret = new_secret()
    headers = sign([secret], message_id=ID, moment=datetime.now(UTC), body=BODY)
    assert Webhook(secret).verify(BODY, headers) == {"text": "grüße"}


def test_we_accept_what_the_reference_library_signs() -> None:
    """Our verification accepts a message signed by the reference library."""
    secret, now = new_secret(), datetime.now(UTC)
    signature = Webhook(secret).sign(ID, now, BODY.decode())
    headers = {
        "webhook-id": ID,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
    verify([secret], headers, BODY, now=now)


def test_the_specification_s_example_has_its_signature() -> None:
    """The example of the specification's own libraries is signed as they print it."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    moment = datetime.fromtimestamp(1614265330, UTC)
    headers = sign(
        [secret], message_id="msg_p5jXN8AQM9LWM0D4loKWxJek", moment=moment, body=b'{"test": 2432232314}'
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_during_rotation_the_receiver_may_hold_either_secret() -> None:
    """One message signed with two live secrets is verified by a receiver of either, and by no third."""
    old, new = new_secret(), new_secret()
    headers = sign([new, old], message_id=ID, moment=datetime.now(UTC), body=BODY)
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        Webhook(secret).verify(BODY, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(BODY, headers)


@given(body=st.binary(max_size=200), place=st.integers(min_value=0), flip=st.integers(1, 255))
def test_a_changed_byte_is_refused(body: bytes, place: int, flip: int) -> None:
    """Whatever byte of the body, id or signature is changed, the message is refused."""
    secret, now = "whsec_" + base64.b64encode(bytes(32)).decode(), datetime(2026, 1, 2, tzinfo=UTC)
    headers = sign([secret], message_id=ID, moment=now, body=body)
    verify([secret], headers, body, now=now)
    changed = bytearray(body or b"x")
    changed[place % len(changed)] ^= flip
    with pytest.raises(BadSignature):
        verify([secret], headers, bytes(changed), now=now)
    with pytest.raises(BadSignature):
        verify([secret], headers | {"webhook-id": "evt_02"}, body, now=now)


@pytest.mark.parametrize(("seconds", "fits"), [(299, True), (-299, True), (301, False), (-301, False)])
def test_the_time_window_is_five_minutes(seconds: int, *, fits: bool) -> None:
    """A timestamp within five minutes of the clock passes, one outside does not."""
    secret, now = new_secret(), datetime(2026, 1, 2, tzinfo=UTC)
    headers = sign([secret], message_id=ID, moment=now + timedelta(seconds=seconds), body=BODY)
    if fits:
        verify([secret], headers, BODY, now=now)
    else:
        with pytest.raises(BadSignature):
            verify([secret], headers, BODY, now=now)


@given(
    headers=st.dictionaries(
        st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature"]), st.text(max_size=40)
    )
)
def test_garbage_is_refused_and_never_an_accident(headers: dict[str, str]) -> None:
    """Any headers at all lead to a refusal, not to another exception."""
    with pytest.raises(BadSignature):
        verify([new_secret()], headers, BODY, now=datetime(2026, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize(
    "secret",
    ["", "   ", "whsec_", "whsec_????", "hunter2", "whsec_" + base64.b64encode(b"short").decode(), "whsec_ü"],
)
def test_a_secret_that_is_none_is_refused(secret: str) -> None:
    """An empty, short or unreadable secret never becomes a key, and is not repeated in the error."""
    with pytest.raises(BadSecret) as caught:
        secret_key(secret)
    assert len(secret.strip()) < 7 or secret not in str(caught.value)


def test_nothing_is_sent_unsigned() -> None:
    """Without a live secret there is no signature to send."""
    with pytest.raises(BadSecret):
        sign([], message_id=ID, moment=datetime.now(UTC), body=BODY)


def test_new_secrets_differ_and_hold_32_bytes() -> None:
    """A fresh secret is 32 random bytes."""
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(secret_key(new_secret())) == 32
