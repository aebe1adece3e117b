"""`builtin:shell`: without a model; runs commands that a user types after `!` in the sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from delivery.errors import as_sentence
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
    "to you here when it is done, `status ID` shows the state of a job, `logs ID` shows its output, "
    "`stop ID` ends it."
)

JOB_COMMANDS = {"status": "", "logs": "logs", "stop": "stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """One typed command: a tool to call with its arguments."""

    tool: str
    args: dict[str, Any]


def parse_commands(text: str) -> list[ShellCommand]:
    """Parse a message: a line that starts with `!` starts a command, and the following lines belong to it."""
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
    return [parsed for command in commands if (parsed := _parse_command(command)) is not None]


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
    """Render a tool result as a message, with the note about the command if there is one."""
    shown = _render_result(command, result)
    note = result.detail.get("note")
    return f"{shown}\n\nNote: {as_sentence(str(note))}" if note else shown


def _render_result(command: ShellCommand, result: ToolResult) -> str:
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
    """Runs typed commands unchanged."""

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Run the commands of a message in order, or return a job's result."""
        if turn_input.trigger == "compact":
            yield Finished(output="")
            return
        given = [] if turn_input.trigger == "job" else parse_commands(turn_input.input)
        if pending := await _calls_needing_approval(given, turn_input, tools):
            yield ApprovalRequired(calls=pending, state=b"")
            return
        said = (
            turn_input.input if turn_input.trigger == "job" else await _run_commands(given, turn_input, tools)
        )
        yield MessageCompleted(text=said)
        yield Finished(output=said)


async def _calls_needing_approval(
    commands: Sequence[ShellCommand], turn_input: TurnInput, tools: Tools
) -> tuple[PendingToolCall, ...]:
    """Return the calls that another person must approve, because the asker may not."""
    denied = {call for call, decision in turn_input.decisions.items() if not decision.approved}
    calls = [
        PendingToolCall(id=_call_id(place), name=command.tool, args=command.args)
        for place, command in enumerate(commands)
        if _call_id(place) not in denied
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
    for place, command in enumerate(commands):
        decision = turn_input.decisions.get(_call_id(place))
        if decision is not None and not decision.approved:
            comment = f" {decision.comment}" if decision.comment else ""
            answers.append(f"Not run, it was denied.{comment}")
            continue
        result = await tools.call(command.tool, command.args, call=_call_id(place), typed_by_asker=True)
        answers.append(render_result(command, result))
    return "\n\n".join(answers) or (
        code_block("\n".join(turn_input.attachment_lines)) if turn_input.attachment_lines else HELP_TEXT
    )


def _call_id(index: int) -> str:
    return f"order-{index}"
