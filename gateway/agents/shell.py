"""`builtin:shell`: no model; what a person types after `!` runs in the sandbox, and says so openly."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.agents.port import (
    Agent,
    AgentEvent,
    ApprovalRequired,
    Finished,
    MessageCompleted,
    PendingToolCall,
    ToolResult,
    Tools,
    TurnInput,
)

HELP_TEXT = (
    "I am the built-in shell, not a language model. "
    "`!command` runs a command in the sandbox, `!&command` starts a background job whose result comes "
    "to you here when it is done, `status ID` tells how a job is doing, `logs ID` shows its output, "
    "`stop ID` ends it."
)

JOB_COMMANDS = {"status": "", "logs": "logs", "stop": "stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """One thing a person typed: a tool to call, with its arguments."""

    tool: str
    args: dict[str, Any]


def parse_commands(text: str) -> list[ShellCommand]:
    """Read what a person typed: a line that starts with `!` begins a command, the next ones belong to it."""
    words = text.split()
    if len(words) == 2 and words[0].lower() in JOB_COMMANDS:  # noqa: PLR2004 - a word and an id
        action = JOB_COMMANDS[words[0].lower()]
        return [
            ShellCommand(
                tool="async_status", args={"resultId": words[1]} | ({"action": action} if action else {})
            )
        ]
    commands: list[str] = []
    for line in text.splitlines():
        if line.startswith("!"):
            commands.append(line[1:])
        elif commands:
            commands[-1] += f"\n{line}"
    return [order for command in commands if (order := _parse_command(command)) is not None]


def _parse_command(command: str) -> ShellCommand | None:
    background = command.startswith("&")
    script = command.removeprefix("&").strip()
    if not script:
        return None
    return ShellCommand(tool="bash", args={"command": script} | ({"background": True} if background else {}))


def code_block(output: str) -> str:
    """Return output as a code block whose fence no line of the output can close."""
    longest = max((len(run) for run in _tick_runs(output)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{output.rstrip(chr(10))}\n{fence}"


def _tick_runs(output: str) -> list[str]:
    return [run for run in "".join(c if c == "`" else " " for c in output).split() if run]


def render_result(command: ShellCommand, result: ToolResult) -> str:
    """Put what a tool call came to into words for a person."""
    detail = result.detail
    if "stdout" in detail:
        return _render_output(detail)
    if command.args.get("background") and result.ok:
        return f"Started job {detail['resultId']}; its result comes here when it is done."
    if command.tool == "async_status" and result.ok:
        return _render_job(detail)
    return result.content


def _render_output(detail: Any) -> str:
    output = f"{detail['stdout']}{detail['stderr']}"
    said = [code_block(output)] if output.strip() else []
    if detail["timed_out"]:
        said.append(f"Timed out after {detail['duration_ms'] / 1000:.1f} s.")
    elif detail["exit_code"] != 0 or not said:
        said.append(f"Exit code {detail['exit_code']}.")
    return "\n\n".join(said)


def _render_job(detail: Any) -> str:
    exit_code = "" if detail["exit_code"] is None else f", exit code {detail['exit_code']}"
    said = f"Job {detail['resultId']} is {detail['state']}{exit_code}: `{detail['command']}`"
    return f"{said}\n\n{code_block(detail['output'])}" if detail["output"].strip() else said


class ShellAgent(Agent):
    """Runs what people type, word for word."""

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Carry the orders of a message out in turn, or pass a job's result on."""
        given = [] if turn_input.trigger == "job" else parse_commands(turn_input.input)
        if asking := await _calls_needing_approval(given, turn_input, tools):
            yield ApprovalRequired(calls=asking, state=b"")
            return
        said = (
            turn_input.input if turn_input.trigger == "job" else await _run_commands(given, turn_input, tools)
        )
        yield MessageCompleted(text=said)
        yield Finished(output=said)


async def _calls_needing_approval(
    commands: Sequence[ShellCommand], turn_input: TurnInput, tools: Tools
) -> tuple[PendingToolCall, ...]:
    """Return the orders that others have to approve first: who typed them may not."""
    calls = [
        PendingToolCall(id=_call_id(place), name=order.tool, args=order.args)
        for place, order in enumerate(commands)
        if _call_id(place) not in turn_input.decisions
    ]
    return tuple(
        [
            call
            for call in calls
            if await tools.needs_approval(call.name, call.args, call=call.id, typed_by_asker=True)
        ]
    )


async def _run_commands(commands: Sequence[ShellCommand], turn_input: TurnInput, tools: Tools) -> str:
    answers = []
    for place, order in enumerate(commands):
        decision = turn_input.decisions.get(_call_id(place))
        if decision is not None and not decision.approved:
            comment = f" {decision.comment}" if decision.comment else ""
            answers.append(f"Not run, it was denied.{comment}")
            continue
        result = await tools.call(order.tool, order.args, call=_call_id(place), typed_by_asker=True)
        answers.append(render_result(order, result))
    return "\n\n".join(answers) or (
        code_block("\n".join(turn_input.attachment_lines)) if turn_input.attachment_lines else HELP_TEXT
    )


def _call_id(index: int) -> str:
    return f"order-{index}"
