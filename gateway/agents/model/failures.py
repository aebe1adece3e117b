"""Translate errors of pydantic-ai into errors for users."""

from __future__ import annotations

from pydantic_ai import RunUsage, UsageLimits
from pydantic_ai.exceptions import (
    AgentRunError,
    ContentFilterError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRequestTimeout,
    OutputTokenLimitExceeded,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
)

from gateway.agents.model.models import is_transient
from gateway.agents.port import AgentError, TurnLimits

MAX_SHOWN = 300

MODEL_RUN_ERRORS = (AgentRunError, FallbackExceptionGroup)
"""Errors that a model run may raise; any other error is a bug of the gateway or of a tool."""

_MESSAGES: tuple[tuple[type[Exception], str], ...] = (
    (ModelAuthenticationError, "refused the API key: check the key and what it may use"),
    (ModelNotFoundError, "does not know this model: check agent.model and agent.base_url"),
    (ModelQuotaExceededError, "says that the account's quota is used up: top it up or use another model"),
    (ModelContextWindowExceededError, "says the conversation is too long: lower limits.context_tokens"),
)


def usage_limits(limits: TurnLimits) -> UsageLimits:
    """Return a turn's limits for pydantic-ai; 0 means none."""
    return UsageLimits(
        request_limit=limits.requests or None,
        input_tokens_limit=limits.input_tokens or None,
        output_tokens_limit=limits.output_tokens or None,
        total_tokens_limit=limits.total_tokens or None,
    )


def to_agent_error(error: Exception, limits: TurnLimits, usage: RunUsage) -> AgentError:
    """Return the AgentError for an error of a model run."""
    if isinstance(error, UsageLimitExceeded):
        return AgentError(limit_message(limits, usage))
    if isinstance(error, FallbackExceptionGroup):
        return _all_failed(error)
    if isinstance(error, ModelAPIError):
        return AgentError(_call_failed(error), retryable=_is_retryable(error))
    return _unusable_answer(error)


def limit_message(limits: TurnLimits, usage: RunUsage) -> str:
    """Return which limit of the turn was reached, and which setting raises it."""
    tokens = usage.input_tokens + usage.output_tokens
    spent = (
        ("requests", "model requests", limits.requests, usage.requests, usage.requests >= limits.requests),
        ("input_tokens", "input tokens", limits.input_tokens, usage.input_tokens, None),
        ("output_tokens", "output tokens", limits.output_tokens, usage.output_tokens, None),
        ("total_tokens", "tokens", limits.total_tokens, tokens, None),
    )
    for name, words, ceiling, used, reached in spent:
        if ceiling and (used > ceiling if reached is None else reached):
            return (
                f"This turn stopped at its limit of {ceiling} {words} ({used} used). "
                f"Send another message to go on, or raise limits.{name} of the agent."
            )
    return "This turn stopped at one of its usage limits; see the limits of the agent."


def _is_retryable(error: Exception) -> bool:
    return is_transient(error) and not isinstance(error, ModelQuotaExceededError)


def _all_failed(group: FallbackExceptionGroup) -> AgentError:
    failures = [error for error in group.exceptions if isinstance(error, Exception)]
    problems = "; ".join(
        _call_failed(error) if isinstance(error, ModelAPIError) else str(error) for error in failures
    )
    return AgentError(
        f"None of the agent's models answered: {problems}", retryable=any(map(_is_retryable, failures))
    )


def _call_failed(error: ModelAPIError) -> str:
    name = f'The model "{error.model_name}"'
    for kind, words in _MESSAGES:
        if isinstance(error, kind):
            return f"{name} {words}"
    if isinstance(error, ModelRequestTimeout):
        return f"{name} did not finish within limits.step_timeout ({error.timeout:g} s)"
    if isinstance(error, ModelHTTPError):
        return f"{name} answered with HTTP {error.status_code}"
    return f"{name} could not be reached or broke off: {str(error)[:MAX_SHOWN]}"


def _unusable_answer(error: Exception) -> AgentError:
    if isinstance(error, ContentFilterError):
        return AgentError("The model's content filter refused to answer.")
    if isinstance(error, OutputTokenLimitExceeded):
        return AgentError("The model ran into its own output limit before it said anything usable.")
    if isinstance(error, UnexpectedModelBehavior):
        return AgentError(f"The model gave no usable answer: {str(error)[:MAX_SHOWN]}")
    return AgentError(f"The model run failed ({type(error).__name__}): {str(error)[:MAX_SHOWN]}")
