"""The model of the story that runs on every platform: question, approval, job, and its result."""

from __future__ import annotations

from typing import Any

from openai_server import ScriptedTurn, ToolCall, last_text

PARTIAL_STORY = "Once upon a time"
FULL_STORY = "Once upon a time there was a dove."
JOB_ARGUMENTS = {
    "command": "sleep 2; mkdir -p outbox; printf 'a feather' > outbox/feather.txt; echo pig''eon",
    "background": True,
}


class StoryModel:
    """The model: stops in the middle of its story once, starts a job when asked, and repeats its result."""

    def __init__(self) -> None:
        self.story_requests = 0

    def __call__(self, body: dict[str, Any]) -> ScriptedTurn:
        """Answer one request."""
        text = last_text(body)
        if body["messages"][-1]["role"] == "tool":
            return ScriptedTurn(text="It is under way.", pieces=1)
        if "start the job" in text:
            return ScriptedTurn(calls=[ToolCall(name="bash", args=JOB_ARGUMENTS)])
        if "pigeon" in text:
            return ScriptedTurn(text="The job said: pigeon", pieces=1)
        self.story_requests += 1
        return (
            ScriptedTurn(text=PARTIAL_STORY, fault="stall")
            if self.story_requests == 1
            else ScriptedTurn(text=FULL_STORY)
        )
