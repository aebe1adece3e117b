"""Record what the model agent stores, one file per kind: `python -m record_model_histories FOLDER`.

The recordings stay for good: later versions of the agent and of pydantic-ai must read the old ones. Run this
only to add recordings of a new format, under new names.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from pathlib import Path

from agent_tools import RecordingTools, agent_spec, approve, collect_steps, collect_steps_until, turn_input
from gateway.agents.history import HistoryEntry, effective, encode_entry
from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.port import ApprovalRequired, Checkpoint, Finished, TurnLimits
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text

REMOVE = ToolCall(name="bash", args={"command": "rm -r build"})


def script(body: dict[str, object]) -> ScriptedTurn:
    """Ask to clean up once, remember when asked to, and else answer."""
    text = last_text(body)
    if text == "clean up":
        return ScriptedTurn(text="May I?", calls=[REMOVE])
    return ScriptedTurn(text="memory of it" if "conversation begins" in text else "Done. " + "word " * 100)


async def record() -> dict[str, bytes]:
    """Return the bytes of a broken-off, a paused, a finished and a compacted conversation."""
    async with (
        OpenAIServer(script) as server,
        open_model_agent(Vendors(trusted_base_urls=(server.base_url,))) as agent,
    ):
        agent_record = agent_spec(server.base_url, limits=TurnLimits(context_tokens=4000))
        given, tools = (
            turn_input(agent_record, "clean up"),
            RecordingTools(needs_approval_for=["rm -r build"]),
        )
        broken = await collect_steps_until(agent, given, tools, lambda step: isinstance(step, Checkpoint))
        asked = (await collect_steps(agent, given, tools))[-1]
        assert isinstance(broken[-1], Checkpoint)
        assert isinstance(asked, ApprovalRequired)
        tools.approved.add(asked.calls[0].id)
        decided = turn_input(agent_record, checkpoint=asked.state, decisions=approve(asked.calls[0].id))
        finished = (await collect_steps(agent, decided, tools))[-1]
        assert isinstance(finished, Finished)
        assert finished.history is not None
        history: tuple[HistoryEntry, ...] = (finished.history,)
        for turn in range(20):
            later = turn_input(agent_record, f"message {turn}", history=history)
            last = (await collect_steps(agent, later, tools))[-1]
            assert isinstance(last, Finished)
            assert last.history is not None
            history = tuple(effective([*history, last.history]))
    compacted = next(entry for entry in reversed(history) if entry.replaces)
    entries = {"finished": finished.history, "compacted": compacted}
    return {"broken_off": broken[-1].state, "asked": asked.state} | {
        name: encode_entry(entry) for name, entry in entries.items()
    }


def main() -> None:
    """Write the recordings into the folder named on the command line."""
    folder = Path(sys.argv[1])
    for name, state in asyncio.run(record()).items():
        (folder / f"v2-{name}-pydantic-ai-{version('pydantic-ai-slim')}.state").write_bytes(state)


if __name__ == "__main__":
    main()
