"""`builtin:shell`: no model; what a person types after `!` runs in the sandbox, and says so openly."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from gateway.agents.port import Agent, Finished, Said, Step, ToolResult, Tools, Work

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
        said = work.input if work.trigger == "job" else await self._carry_out(work, tools)
        yield Said(text=said)
        yield Finished(output=said)

    @staticmethod
    async def _carry_out(work: Work, tools: Tools) -> str:
        answers = [
            answer(
                order,
                await tools.call(order.tool, order.args, call=f"order-{place}", typed_by_asker=True),
            )
            for place, order in enumerate(orders(work.input))
        ]
        return "\n\n".join(answers) or ABOUT
