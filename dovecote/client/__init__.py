"""A typed client of a gateway: turns, resumable streams, jobs, approvals and the verification of webhooks.

`AsyncDovecote` is for asyncio; `Dovecote` has the same methods without `await`.
"""

from __future__ import annotations

from dovecote.client.answers import ApprovalAnswer, ConversationEvent, JobAnswer, StartedTurn, TurnResult
from dovecote.client.asynchronous import AsyncDovecote
from dovecote.client.errors import DovecoteError, GatewayAway, RequestRefused
from dovecote.client.synchronous import Dovecote
from dovecote.client.webhooks import InvalidWebhook, verify_webhook

__all__ = [
    "ApprovalAnswer",
    "AsyncDovecote",
    "ConversationEvent",
    "Dovecote",
    "DovecoteError",
    "GatewayAway",
    "InvalidWebhook",
    "JobAnswer",
    "RequestRefused",
    "StartedTurn",
    "TurnResult",
    "verify_webhook",
]
