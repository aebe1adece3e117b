"""The model of the story "fix the failing test and open a pull request": one tool call after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from openai_server import ScriptedTurn, ToolCall, last_text

REPOSITORY, BRANCH = "example/tool", "fix-the-sum"
ORDER = "fix the failing test in example/tool and open a PR"
SEARCH_ORDER = "search for secrets"
GO_ORDER = "let the test go on"
BEGUN = "The test runs in the background."
SEARCHED = "The search has found:"
OPENED = "The test is mended, see"
FILES = {
    "adding.py": b"def add(one, other):\n    return one - other\n",
    "test_adding.py": (
        b"import unittest\n\nfrom adding import add\n\n\nclass Adding(unittest.TestCase):\n"
        b"    def test_sum(self):\n        self.assertEqual(add(2, 3), 5)\n"
    ),
}
MENDED = FILES["adding.py"].replace(b"-", b"+")

_GATE = "go"
_TEST = "python3 -B -m unittest test_adding 2>&1"
_WAIT = f"while [ ! -e ../{_GATE} ]; do sleep 0.1; done"
_SECRETS = "canary[-][0-9a-f]{32}|eC1hY2Nlc3MtdG9rZW4[6]Y2FuYXJ5"
"""The beginnings of the secrets, in clear and in base64, in a pattern that does not match itself."""

_SEARCH = f"""
echo environment: $(env | grep -cE '{_SECRETS}')
echo processes: $(cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -acE '{_SECRETS}')
echo files: $(cd / && grep -rlE '{_SECRETS}' --exclude-dir={{proc,sys,usr,dev}} . 2>/dev/null | wc -l)
echo control: $(printf 'canary%s%032d' - 0 | grep -cE '{_SECRETS}')
"""
NOTHING_FOUND = "environment: 0\nprocesses: 0\nfiles: 0\ncontrol: 1"


class PullRequestModel:
    """Plays the story; it has only what the gateway sends it.

    `git_url` is the repository's address, `api_url` that of the REST API.
    """

    def __init__(self, git_url: str, api_url: str) -> None:
        pulls = {"title": "Mend the sum", "head": BRANCH, "base": "main", "body": "The sum was a difference."}
        ask = f"curl -sS {api_url}/repos/{REPOSITORY}/pulls -d '{json.dumps(pulls)}'"
        self._first = [
            _call("git_clone", url=f"{git_url}/{REPOSITORY}.git"),
            _bash(f"cd tool && {_TEST}"),
            _call("edit", path="tool/adding.py", old_text="one - other", new_text="one + other"),
            _bash(f"cd tool && {_WAIT}; {_TEST} && echo all''-green", background=True),
        ]
        self._then = [
            _call("git_commit", directory="tool", message="Mend the sum", branch=BRANCH),
            _call("git_push", directory="tool", branch=BRANCH),
            _bash(ask),
        ]

    def __call__(self, body: dict[str, Any]) -> ScriptedTurn:
        """Answer one request."""
        messages = body["messages"]
        start = max(place for place, one in enumerate(messages) if one["role"] == "user")
        text, results = _text(messages[start]), [one for one in messages[start:] if one["role"] == "tool"]
        if SEARCH_ORDER in text:
            return self._next([_bash(_SEARCH)], results, lambda: f"{SEARCHED}\n{last_text(body)}")
        if GO_ORDER in text:
            return self._next([_bash(f"touch {_GATE}")], results, lambda: "It goes on.")
        if ORDER in text:
            return self._next(self._first, results, lambda: BEGUN)
        if "all-green" in text:
            return self._next(self._then, results, lambda: _opened(last_text(body)))
        return ScriptedTurn(text=f"The test failed: {text}", pieces=1)

    @staticmethod
    def _next(calls: list[ToolCall], results: list[Any], words: Callable[[], str]) -> ScriptedTurn:
        if len(results) < len(calls):
            return ScriptedTurn(calls=[calls[len(results)]])
        return ScriptedTurn(text=words(), pieces=1)


def _opened(answer: str) -> str:
    found = re.search(r'"html_url": "([^"]+)"', answer)
    return f"{OPENED} {found[1] if found else answer}"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _call(name: str, **args: Any) -> ToolCall:
    return ToolCall(name=name, args=args)


def _bash(command: str, **args: Any) -> ToolCall:
    return _call("bash", command=command, **args)
