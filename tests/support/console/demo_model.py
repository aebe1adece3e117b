"""The model behind the console's journeys and pictures: a message decides which part of the page it fills."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text

REPORT = """## What changed this week

The importer reads **both** formats now. Nothing else was touched.

| file | before | after |
|:---|---:|---:|
| `importer.py` | 212 | 188 |
| `formats.py` | 40 | 71 |

- [x] read the old format
- [x] read the new format
- [ ] remove the old writer
  - wait for the last client
  - then delete `writer.py`

```python
def read(path: Path) -> Table:
    \"\"\"Return the table of a file in either format.\"\"\"
    with path.open() as lines:
        return Table.parse(lines)
```

> The old writer is still used by two clients.
"""


ANSWERS = {
    "Is the importer up": ScriptedTurn(
        text="Yes. It has read both formats since 08:10, and its queue is empty.", usage=(350, 26)
    ),
    "A background job": ScriptedTurn(
        text="The nightly import is complete: 3 of 3 parts, no errors.", usage=(760, 31)
    ),
    "break": ScriptedTurn(fault="401"),
    "busy": ScriptedTurn(fault="500"),
    "report": ScriptedTurn(text=REPORT, usage=(1480, 310)),
}
"""What is answered to messages that begin so."""


def answer(body: dict[str, Any]) -> ScriptedTurn:
    """Play one request: a reaction to `Thanks`, else what the last message asks for."""
    if asked_in(body).startswith("Thanks"):
        return thank(body)
    return play(body)


def play(body: dict[str, Any]) -> ScriptedTurn:
    """Play one request: `run:`, `write:`, `ask:`, `choose:`, `form:`, `report` and `break`; else an echo."""
    text = last_text(body)
    if body["messages"][-1]["role"] == "tool" and "resultId" in text:
        return ScriptedTurn(text="The import has started. I report here when it is done.", usage=(820, 24))
    if body["messages"][-1]["role"] == "tool":
        return ScriptedTurn(text="Done. " + text.strip()[:200], pieces=1, usage=(820, 64))
    word, _, rest = text.partition(":")
    rest = rest.strip()
    calls = {
        "run": lambda: ToolCall(name="bash", args={"command": rest}),
        "job": lambda: ToolCall(name="bash", args={"command": rest, "background": True}),
        "write": lambda: ToolCall(name="write", args={"path": rest, "content": "one\ntwo\nthree\n"}),
        "ask": lambda: ToolCall(name="ask_person", args={"question": rest}),
        "choose": lambda: ToolCall(
            name="ask_person", args={"question": rest, "choices": ["Green", "Blue", "Neither"]}
        ),
        "form": lambda: ToolCall(
            name="ask_person",
            args={"question": rest, "form": {"host": "name of the server", "port": "its port"}},
        ),
    }
    if word in calls:
        return ScriptedTurn(calls=[calls[word]()], usage=(640, 32))
    known = next((turn for begin, turn in ANSWERS.items() if text.startswith(begin)), None)
    return known or ScriptedTurn(text=f"echo: {text}", pieces=1, usage=(320, 18))


def asked_in(body: dict[str, Any]) -> str:
    """Return what the person wrote last."""
    said = [one["content"] for one in body["messages"] if one["role"] == "user"]
    return str(said[-1]) if said else ""


def thank(body: dict[str, Any]) -> ScriptedTurn:
    """React to the message first, then answer it."""
    if body["messages"][-1]["role"] == "tool":
        return ScriptedTurn(text="Glad to hear it. The next import starts at six.", usage=(410, 22))
    return ScriptedTurn(calls=[ToolCall(name="react", args={"emoji": "❤"})], usage=(390, 12))


async def _serve(port: int) -> None:
    async with OpenAIServer(answer, port=port) as server:
        print(f"ready {server.base_url}", flush=True)  # noqa: T201 - a process says where it listens
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The model behind the console's pictures.")
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(_serve(parser.parse_args().port))
