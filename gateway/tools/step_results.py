"""The results of tool calls as events show them, and as later attempts of a turn get them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult
from gateway.store.turn_state import Interruption
from gateway.store.turns.turn_steps import StepRow

MAX_EVENT_OUTPUT = 128 * 1024
"""Characters of output in an event; the step's row has the full output."""

SUBJECTS = ("command", "path", "pattern", "query", "url", "name")
"""Arguments that say what a tool works on, the most telling one first."""

MAX_SUBJECT = 100


def event_data(result: ToolResult) -> dict[str, Any]:
    """Return what the event of a finished call says of its result; the output is cut."""
    detail = result.detail
    output = detail.get("stdout", "") + detail.get("stderr", "") if "stdout" in detail else result.content
    return {
        "ok": result.ok,
        "exit_code": detail.get("exit_code"),
        "duration_ms": detail.get("duration_ms"),
        "timed_out": bool(detail.get("timed_out", False)),
        "output": output[:MAX_EVENT_OUTPUT],
        "truncated": bool(detail.get("truncated", False)) or len(output) > MAX_EVENT_OUTPUT,
        **({"resultId": detail["resultId"]} if "resultId" in detail else {}),
    }


def recorded_result(step: StepRow) -> ToolResult:
    """Return the result of a call that an earlier attempt has finished."""
    result = step.result or {}
    return ToolResult(ok=result["ok"], content=result["content"], detail=result["detail"])


_CAUSES = {
    Interruption.LOST: "The gateway was too slow, or lost NATS or its database, while this ran",
    Interruption.CRASH: "The gateway was restarted while this ran",
    Interruption.NONE: "This was interrupted while it ran",
}


def interrupted_result(args: Mapping[str, Any], interruption: Interruption) -> ToolResult:
    """Return the result of a call that was running when an earlier attempt ended."""
    what = str(args.get("command") or json.dumps(dict(args)))
    return ToolResult(
        ok=False,
        content=(
            f"{_CAUSES[interruption]}, so it may have run in part or whole: {what}\n"
            "Look at what it left before running it again."
        ),
        detail={"interrupted": True, "command": what},
    )


def describe_call(name: str, args: Mapping[str, Any]) -> str:
    """Return a tool's name with the first line of what it works on, as a person reads it."""
    subject = next((args[one] for one in SUBJECTS if isinstance(args.get(one), str) and args[one]), "")
    line = subject.strip().partition("\n")[0]
    return f"{name}: {line[:MAX_SUBJECT]}" if line else name
