"""A signal handler notes the signal and returns: one that raises can be lost, or raise in the wrong place.

Python runs handlers between two steps of its own. A signal that arrives just before a wait is handled after
the wait, and an exception appears wherever the program was.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from source_trees import Source, sources

PACKAGES = ("gateway", "channels", "sandbox", "delivery", "egress")


def test_no_signal_handler_raises() -> None:
    """Wait for a signal with `sigwait`, or let the handler set what the next step looks at."""
    raising = [f"{source.name}: {name}" for source in sources(*PACKAGES) for name in _raising(source)]
    assert not raising, "a signal handler must not raise"


def test_a_handler_that_raises_is_found() -> None:
    """The rule sees a function, a method and the one of the standard library."""
    tree = ast.parse(
        "def stop(*_): raise Ended\n"
        "class Runner:\n"
        "    def stop_it(self, *_): raise Ended\n"
        "    def note(self, *_): self.stopped = True\n"
        "signal.signal(TERM, stop)\n"
        "signal.signal(INT, runner.stop_it)\n"
        "signal.signal(HUP, runner.note)\n"
        "signal.signal(PIPE, signal.SIG_IGN)\n"
        "signal.signal(USR1, signal.default_int_handler)\n"
    )
    assert sorted(_raising_in(list(ast.walk(tree)))) == ["default_int_handler", "stop", "stop_it"]


def _raising(source: Source) -> Iterator[str]:
    return _raising_in([*source.nodes(ast.Call), *source.nodes(ast.FunctionDef)])


def _raising_in(nodes: list[ast.AST]) -> Iterator[str]:
    raises = {"default_int_handler"} | {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and any(isinstance(one, ast.Raise) for one in ast.walk(node))
    }
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "signal.signal" and len(node.args) == 2:
            name = ast.unparse(node.args[1]).rpartition(".")[2]
            if name in raises:
                yield name
