"""`builtin:shell`: no model; what a person types after `!` runs in the sandbox, and says so openly."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.agents.port import Agent, Asked, Call, Finished, Said, Step, ToolResult, Tools, Work

ABOUT = (
    "I am the built-in shell, not a language model. "
    "`!command` runs a command in the sandbox, `!&command` starts a background job whose result comes "
    "to you here when it is done, `status ID` tells how a job is doing, `logs ID` shows its output, "
    "`stop ID` ends it."
)

ASKING = {"status": "", "logs": "logs", "stop": "stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One thing a person typed: a tool to call, with its arguments."""

    tool: str
    args: dict[str, Any]


def orders(text: str) -> list[Order]:
    """Read what a person typed: a line that starts with `!` begins a command, the next ones belong to it."""
    words = text.split()
    if len(words) == 2 and words[0].lower() in ASKING:  # noqa: PLR2004 - a word and an id
        action = ASKING[words[0].lower()]
        return [
            Order(tool="async_status", args={"resultId": words[1]} | ({"action": action} if action else {}))
        ]
    commands: list[str] = []
    for line in text.splitlines():
        if line.startswith("!"):
            commands.append(line[1:])
        elif commands:
            commands[-1] += f"\n{line}"
    return [order for command in commands if (order := _order(command)) is not None]


def _order(command: str) -> Order | None:
    background = command.startswith("&")
    script = command.removeprefix("&").strip()
    if not script:
        return None
    return Order(tool="bash", args={"command": script} | ({"background": True} if background else {}))


def fenced(output: str) -> str:
    """Return output as a code block whose fence no line of the output can close."""
    longest = max((len(run) for run in _tick_runs(output)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{output.rstrip(chr(10))}\n{fence}"


def _tick_runs(output: str) -> list[str]:
    return [run for run in "".join(c if c == "`" else " " for c in output).split() if run]


def answer(order: Order, result: ToolResult) -> str:
    """Put what a tool call came to into words for a person."""
    detail = result.detail
    if "stdout" in detail:
        return _ran(detail)
    if order.args.get("background") and result.ok:
        return f"Started job {detail['resultId']}; its result comes here when it is done."
    if order.tool == "async_status" and result.ok:
        return _job(detail)
    return result.content


def _ran(detail: Any) -> str:
    output = f"{detail['stdout']}{detail['stderr']}"
    said = [fenced(output)] if output.strip() else []
    if detail["timed_out"]:
        said.append(f"Timed out after {detail['duration_ms'] / 1000:.1f} s.")
    elif detail["exit_code"] != 0 or not said:
        said.append(f"Exit code {detail['exit_code']}.")
    return "\n\n".join(said)


def _job(detail: Any) -> str:
    exit_code = "" if detail["exit_code"] is None else f", exit code {detail['exit_code']}"
    said = f"Job {detail['resultId']} is {detail['state']}{exit_code}: `{detail['command']}`"
    return f"{said}\n\n{fenced(detail['output'])}" if detail["output"].strip() else said


class ShellAgent(Agent):
    """Runs what people type, word for word."""

    async def perform(self, work: Work, tools: Tools) -> AsyncGenerator[Step, None]:
        """Carry the orders of a message out in turn, or pass a job's result on."""
        given = [] if work.trigger == "job" else orders(work.input)
        if asking := await _asking(given, work, tools):
            yield Asked(calls=asking, state=b"")
            return
        said = work.input if work.trigger == "job" else await _carry_out(given, work, tools)
        yield Said(text=said)
        yield Finished(output=said)


async def _asking(given: Sequence[Order], work: Work, tools: Tools) -> tuple[Call, ...]:
    """Return the orders that others have to approve first: who typed them may not."""
    calls = [
        Call(id=_call(place), name=order.tool, args=order.args)
        for place, order in enumerate(given)
        if _call(place) not in work.decisions
    ]
    return tuple(
        [call for call in calls if await tools.asks(call.name, call.args, call=call.id, typed_by_asker=True)]
    )


async def _carry_out(given: Sequence[Order], work: Work, tools: Tools) -> str:
    answers = []
    for place, order in enumerate(given):
        decision = work.decisions.get(_call(place))
        if decision is not None and not decision.approved:
            comment = f" {decision.comment}" if decision.comment else ""
            answers.append(f"Not run, it was denied.{comment}")
            continue
        result = await tools.call(order.tool, order.args, call=_call(place), typed_by_asker=True)
        answers.append(answer(order, result))
    return "\n\n".join(answers) or (fenced("\n".join(work.attached)) if work.attached else ABOUT)


def _call(place: int) -> str:
    return f"order-{place}"
