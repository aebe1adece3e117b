"""Verifiers of signatures with their signers: one pair for each kind of signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import SecretStr

from channels.discord.receive.interactions import is_signed as is_signed_by_discord
from channels.github.receive.codec import is_signed as is_signed_by_github
from channels.inbox.signatures import hmac_sha256
from channels.port import WebhookRequest
from channels.slack.receive.signature import is_signed as is_signed_by_slack
from channels.slack.simulator.outgoing import signature_headers
from channels.zalo.receive.receiver import is_signed as is_signed_by_zalo
from channels.zalo.settings import ZaloSettings
from channels.zalo.simulator.simulator import APP, OA_SECRET, oa_headers
from delivery.webhooks.signing import BadSignature, new_secret, sign, verify

BODY = b'{"type": "event_callback", "text": "p\xc3\xa9a"}'
NOW = datetime(2026, 1, 2, tzinfo=UTC)
SECRET = "a-signing-secret-of-an-app"
WEBHOOK_SECRET = new_secret()
DISCORD = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC = DISCORD.public_key().public_bytes_raw().hex()

ZALO = ZaloSettings.model_validate(
    {"platform": "oa", "app_id": APP, "oa_secret": OA_SECRET, "access_token": "a" * 20}
)

Headers = Mapping[str, str]
Verify = Callable[[Headers, bytes], bool]


def _slack(headers: Headers, body: bytes) -> bool:
    return is_signed_by_slack(SECRET, headers, body, now=NOW.timestamp())


def _discord(headers: Headers, body: bytes) -> bool:
    return is_signed_by_discord(WebhookRequest(headers=headers, body=body), PUBLIC)


def _webhook(headers: Headers, body: bytes) -> bool:
    try:
        verify([WEBHOOK_SECRET], headers, body, now=NOW)
    except BadSignature:
        return False
    return True


def _github(headers: Headers, body: bytes) -> bool:
    return is_signed_by_github(SecretStr(SECRET), headers, body)


def _github_headers(_moment: datetime = NOW) -> dict[str, str]:
    return {"x-hub-signature-256": f"sha256={hmac_sha256(SECRET, BODY)}"}


def _zalo(headers: Headers, body: bytes) -> bool:
    return is_signed_by_zalo(ZALO, headers, body)


def _zalo_headers(_moment: datetime = NOW) -> dict[str, str]:
    return oa_headers(BODY, secret=OA_SECRET)


def _slack_headers(moment: datetime = NOW) -> dict[str, str]:
    headers = signature_headers(SECRET, BODY, "application/json", now=moment.timestamp())
    return {name: value for name, value in headers.items() if name != "content-type"}


def _discord_headers(moment: datetime = NOW) -> dict[str, str]:
    stamp = str(int(moment.timestamp()))
    return {
        "x-signature-timestamp": stamp,
        "x-signature-ed25519": DISCORD.sign(stamp.encode() + BODY).hex(),
    }


def _webhook_headers(moment: datetime = NOW) -> dict[str, str]:
    return sign([WEBHOOK_SECRET], message_id="msg_1", moment=moment, body=BODY)


SIGNATURE_CASES: dict[str, tuple[Verify, Callable[..., dict[str, str]], str]] = {
    "slack": (_slack, _slack_headers, "x-slack-signature"),
    "discord": (_discord, _discord_headers, "x-signature-ed25519"),
    "github": (_github, _github_headers, "x-hub-signature-256"),
    "zalo": (_zalo, _zalo_headers, "x-zevent-signature"),
    "webhooks": (_webhook, _webhook_headers, "webhook-signature"),
}
"""What verifies, what signs BODY rightly at a moment, and the header that holds the signature."""
