"""Signatures of requests to AgentRun: the results of the vendor's own libraries for the same requests."""

from __future__ import annotations

from datetime import UTC, datetime

from sandbox.agentrun.signature import AccessKey, control_headers, data_headers

KEY = AccessKey(id="key", secret="secret")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_request_to_the_data_plane() -> None:
    """The signature is that of agentrun-sdk 0.0.54."""
    headers = data_headers(
        KEY,
        method="POST",
        url="https://123-ram.agentrun-data.cn-hangzhou.aliyuncs.com/sandboxes/x/processes/cmd",
        region="cn-hangzhou",
        now=NOW,
    )
    assert headers["Agentrun-Authorization"] == (
        "AGENTRUN4-HMAC-SHA256 Credential=key/20260102/cn-hangzhou/agentrun/aliyun_v4_request,"
        "SignedHeaders=host;x-acs-content-sha256;x-acs-date,"
        "Signature=5953f5792d88f9ed2dbee8168e26f12986325a65b0ba42e6ee32db23b0daa976"
    )


def test_a_request_to_the_control_plane() -> None:
    """The signature is that of alibabacloud-tea-openapi 0.4.6."""
    headers = control_headers(
        KEY,
        action="ListSandboxes",
        url="https://agentrun.cn-hangzhou.aliyuncs.com/2025-09-10/sandboxes",
        query={"nextToken": "a+b/c=", "maxResults": "100"},
        now=NOW,
        nonce="nonce",
    )
    assert headers["Authorization"] == (
        "ACS3-HMAC-SHA256 Credential=key,SignedHeaders=accept;host;x-acs-action;x-acs-content-sha256;"
        "x-acs-date;x-acs-signature-nonce;x-acs-version,"
        "Signature=717de97c8568286afdb08af763b8d8bce817006b70506b73417855d85cb24088"
    )
