"""An example of an agent for Dovecote: a plain async function that runs turns."""

from __future__ import annotations

from gateway.agents.custom.turn import AgentTurn

PREFIX = "run: "


async def dispatch(turn: AgentTurn) -> str | None:
    """Run a command in the sandbox, and count the words that it printed."""
    if turn.trigger == "job":
        return f"The job has ended.\n{turn.input}"
    if not turn.input.startswith(PREFIX):
        return f"Write `{PREFIX}COMMAND`. This conversation has {len(turn.history)} earlier messages."
    await turn.say("It printed: ")
    result = await turn.call("bash", command=turn.input.removeprefix(PREFIX))
    printed = str(result.detail.get("stdout") or result.content)
    await turn.say(printed)

    async def count_words() -> int:
        return len(printed.split())

    await turn.say(f"\nThat makes {await turn.step('count', count_words)} words.")
    return None
