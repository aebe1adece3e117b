"""Sign requests to AgentRun: one scheme for its control plane, another for its data plane.

The control plane verifies ACS3-HMAC-SHA256, as every API of Alibaba Cloud does. The data plane verifies
AGENTRUN4-HMAC-SHA256: a key derived from date, region and product, and an unsigned body.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote, urlsplit

API_VERSION = "2025-09-10"
CONTROL_ALGORITHM, DATA_ALGORITHM = "ACS3-HMAC-SHA256", "AGENTRUN4-HMAC-SHA256"
_PRODUCT, _SCOPE_END, _KEY_PREFIX = "agentrun", "aliyun_v4_request", "aliyun_v4"
_UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """The access key of a RAM user."""

    id: str
    secret: str = field(repr=False)


def control_headers(
    key: AccessKey, *, action: str, url: str, query: Mapping[str, str], now: datetime, nonce: str
) -> dict[str, str]:
    """Return the headers of a GET request without a body to the control plane."""
    payload = hashlib.sha256(b"").hexdigest()
    signed = {
        "accept": "application/json",
        "host": urlsplit(url).netloc,
        "x-acs-action": action,
        "x-acs-content-sha256": payload,
        "x-acs-date": _timestamp(now),
        "x-acs-signature-nonce": nonce,
        "x-acs-version": API_VERSION,
    }
    canonical = _canonical("GET", urlsplit(url).path, canonical_query(query), signed, payload)
    signature = _mac(key.secret.encode(), _to_sign(CONTROL_ALGORITHM, canonical)).hex()
    return {
        **signed,
        "Authorization": f"{CONTROL_ALGORITHM} Credential={key.id},SignedHeaders={_names(signed)},"
        f"Signature={signature}",
    }


def data_headers(key: AccessKey, *, method: str, url: str, region: str, now: datetime) -> dict[str, str]:
    """Return the headers of a request without a query to the data plane."""
    signed = {
        "host": urlsplit(url).netloc,
        "x-acs-content-sha256": _UNSIGNED,
        "x-acs-date": _timestamp(now),
    }
    canonical = _canonical(method, urlsplit(url).path, "", signed, _UNSIGNED)
    date = now.strftime("%Y%m%d")
    derived = f"{_KEY_PREFIX}{key.secret}".encode()
    for part in (date, region, _PRODUCT, _SCOPE_END):
        derived = _mac(derived, part)
    signature = _mac(derived, _to_sign(DATA_ALGORITHM, canonical)).hex()
    scope = f"{date}/{region}/{_PRODUCT}/{_SCOPE_END}"
    return {
        **signed,
        "Agentrun-Authorization": f"{DATA_ALGORITHM} Credential={key.id}/{scope},"
        f"SignedHeaders={_names(signed)},Signature={signature}",
    }


def canonical_query(query: Mapping[str, str]) -> str:
    """Return a query in the order and encoding that is signed; it is sent in the same form."""
    return "&".join(f"{quote(name, safe='~')}={quote(query[name], safe='~')}" for name in sorted(query))


def _canonical(method: str, path: str, query: str, signed: Mapping[str, str], payload: str) -> str:
    headers = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    return f"{method}\n{path or '/'}\n{query}\n{headers}\n{_names(signed)}\n{payload}"


def _names(signed: Mapping[str, str]) -> str:
    return ";".join(sorted(signed))


def _to_sign(algorithm: str, canonical: str) -> str:
    return f"{algorithm}\n{hashlib.sha256(canonical.encode()).hexdigest()}"


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _timestamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
