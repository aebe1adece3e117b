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


def answer(body: dict[str, Any]) -> ScriptedTurn:
    """Play one request: `run:`, `write:`, `ask:`, `choose:`, `form:`, `report` and `break`; else an echo."""
    text = last_text(body)
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
    if text.startswith("break"):
        return ScriptedTurn(fault="401")
    if text.startswith("busy"):
        return ScriptedTurn(fault="500")
    if text.startswith("report"):
        return ScriptedTurn(text=REPORT, usage=(1480, 310))
    return ScriptedTurn(text=f"echo: {text}", pieces=1, usage=(320, 18))


async def _serve(port: int) -> None:
    async with OpenAIServer(answer, port=port) as server:
        print(f"ready {server.base_url}", flush=True)  # noqa: T201 - a process says where it listens
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The model behind the console's pictures.")
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(_serve(parser.parse_args().port))
