"""The model of the story that every platform is told: question, approval, job, and its result."""

from __future__ import annotations

from typing import Any

from openai_server import ToolCall, Turn, last_text

BEGINNING = "Once upon a time"
WHOLE = "Once upon a time there was a dove."
JOB = {
    "command": "sleep 2; mkdir -p outbox; printf 'a feather' > outbox/feather.txt; echo pig''eon",
    "background": True,
}


class Teller:
    """The model: stops in the middle of its story once, starts a job when asked, and repeats its result."""

    def __init__(self) -> None:
        self.stories = 0

    def __call__(self, body: dict[str, Any]) -> Turn:
        """Answer one request."""
        text = last_text(body)
        if body["messages"][-1]["role"] == "tool":
            return Turn(text="It is under way.", pieces=1)
        if "start the job" in text:
            return Turn(calls=[ToolCall(name="bash", args=JOB)])
        if "pigeon" in text:
            return Turn(text="The job said: pigeon", pieces=1)
        self.stories += 1
        return Turn(text=BEGINNING, fault="stall") if self.stories == 1 else Turn(text=WHOLE)
