"""Translate errors of model clients into errors for users."""

from __future__ import annotations

from gateway.agents.clients import messages as stored
from gateway.agents.clients.errors import (
    AllModelsFailed,
    ModelCallError,
    ModelContextExceeded,
    ModelKeyRefused,
    ModelQuotaUsedUp,
    ModelRequestRefused,
    ModelServerFailed,
    ModelTimedOut,
    ModelUnknown,
)
from gateway.agents.clients.messages import ChatMessage
from gateway.agents.model.state import TurnUsage
from gateway.agents.port import AgentError, TurnLimits

MAX_SHOWN = 300

_MESSAGES: tuple[tuple[type[ModelCallError], str], ...] = (
    (ModelKeyRefused, "refused the API key: check the key and what it may use"),
    (ModelUnknown, "does not know this model: check agent.model and agent.base_url"),
    (ModelQuotaUsedUp, "says that the account's quota is used up: top it up or use another model"),
    (
        ModelContextExceeded,
        (
            "says the conversation is too long, and a summary did not help: send less text at once, "
            "or set limits.context_tokens to the size of the model's context"
        ),
    ),
)


def to_agent_error(error: ModelCallError) -> AgentError:
    """Return the AgentError for a failed request."""
    if isinstance(error, AllModelsFailed):
        problems = "; ".join(map(_call_failed, error.failures))
        return AgentError(
            f"None of the agent's models answered: {problems}",
            retryable=any(one.may_pass for one in error.failures),
        )
    return AgentError(_call_failed(error), retryable=error.may_pass)


def check_request_limit(limits: TurnLimits, usage: TurnUsage) -> None:
    """Raise AgentError if another request would exceed the turn's limit."""
    if limits.requests and usage.requests >= limits.requests:
        raise _limit_reached("requests", "model requests", limits.requests, usage.requests)


def check_token_limits(limits: TurnLimits, usage: TurnUsage) -> None:
    """Raise AgentError if the turn has used more tokens than allowed; 0 means no limit."""
    spent = (
        ("input_tokens", "input tokens", limits.input_tokens, usage.input_tokens),
        ("output_tokens", "output tokens", limits.output_tokens, usage.output_tokens),
        ("total_tokens", "tokens", limits.total_tokens, usage.input_tokens + usage.output_tokens),
    )
    for name, words, ceiling, used in spent:
        if ceiling and used > ceiling:
            raise _limit_reached(name, words, ceiling, used)


def _limit_reached(name: str, words: str, ceiling: int, used: int) -> AgentError:
    return AgentError(
        f"This turn stopped at its limit of {ceiling} {words} ({used} used). "
        f"Send another message to continue, or raise limits.{name} of the agent."
    )


def unusable_answer(response: ChatMessage, fault: str) -> AgentError:
    """Return the error of a response without text or call, or whose text has not the form of the answer."""
    finish_reason, text = response.get("finish_reason"), stored.response_text(response)
    if stored.is_refusal(response):
        return AgentError(f"The model refused to answer: {text[:MAX_SHOWN]}")
    if finish_reason == "content_filter":
        return AgentError("The model's content filter refused to answer.")
    if finish_reason == "length":
        return AgentError("The model ran into its own output limit before it said anything usable.")
    if text:
        return AgentError(f"The model did not answer in the form that was asked for. {fault}")
    return AgentError("The model gave no usable answer: it returned neither text nor a tool call.")


def _call_failed(error: ModelCallError) -> str:
    name = f'The model "{error.model}"'
    for kind, words in _MESSAGES:
        if isinstance(error, kind):
            return f"{name} {words}"
    if isinstance(error, ModelTimedOut):
        return f"{name} did not finish within limits.step_timeout ({error.seconds:g} s)"
    if error.status is not None:
        return f"{name} answered with HTTP {error.status}{_reason(error)}"
    return f"{name} could not be reached or broke off: {str(error)[:MAX_SHOWN]}"


def _reason(error: ModelCallError) -> str:
    """Return the vendor's own words about a request that it cannot accept, or an error of its own.

    Pages of proxies are left out, and rate limits, which name the operator's organisation.
    """
    words = " ".join(error.detail.split())
    is_shown = isinstance(error, ModelRequestRefused | ModelServerFailed) and words and words[0] not in "<{"
    return f": {words[:MAX_SHOWN]}" if is_shown else ""
