"""A gateway in a container, asked by the programs of its own image: `dovecote chat`, and curl for the API."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CALL_SECONDS = 120
PAUSE_SECONDS = 1.0


def run(*words: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a program and return its output; raises AssertionError with both outputs if it fails."""
    done = subprocess.run(
        words, input=stdin, env=env, capture_output=True, check=False, text=True, timeout=10 * CALL_SECONDS
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds; a failure of it counts as not yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"not after {seconds} s"
        time.sleep(PAUSE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedGateway:
    """`enter` are the words before a program that runs in the gateway's container."""

    enter: Sequence[str]
    data: str

    def run(self, *words: str) -> str:
        """Run a program in the container."""
        return run(*self.enter, *words)

    def chat(self, text: str, conversation: str) -> str:
        """Send a message and return what is printed until its answer is complete."""
        return self.run("dovecote", "chat", "--data", self.data, "--conversation", conversation, text)

    def is_ready(self) -> bool:
        """Ask the gateway itself."""
        self.get("/readyz")
        return True

    def get(self, path: str) -> str:
        """Make a request of the API with the first account's key."""
        script = f'curl -fsS -H "Authorization: Bearer $(cat {self.data}/key)" "http://127.0.0.1:8080$0"'
        return self.run("sh", "-c", script, path)

    def snapshot(self, conversation: str) -> dict[str, Any]:
        """Return the conversation's messages and jobs."""
        shown: dict[str, Any] = json.loads(self.get(f"/conversations/{conversation}/snapshot"))
        return shown

    def has_ended(self, conversation: str) -> bool:
        """Whether the only job has ended and its message is there."""
        shown = self.snapshot(conversation)
        (job,) = shown["jobs"]
        return job["finished_at"] is not None and bool(results(shown))


def results(shown: Mapping[str, Any]) -> list[str]:
    """Return the texts of the messages that report a job's end, of a snapshot."""
    texts = (one["text"] for one in shown["messages"] if one["role"] == "assistant")
    return [text for text in texts if text.startswith("Job job_")]
