"""Every background task of delivery logs its errors: none may end the gateway process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from source_trees import Source, sources

EXEMPT = {
    "_attempt_in_turn": "its group belongs to one call of KeyedWorker, which logs the error",
    "_send_in_turn": "as _attempt_in_turn",
    "_start_lookup": "those who wait for the lookup get its error",
    "_handle": "the outermost loop of KeyedWorker, which logs every error and wakes the key again",
    "_end_with": "waits for an event only",
    "_wake_on_stop": "waits for an event only",
    "wake_at_stop": "waits for an event only",
    "end_on": "waits for an event only",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Functions = dict[str, Function]


def test_every_background_task_logs_its_errors() -> None:
    """A coroutine that is started as a task calls `log_errors`, itself or in a function of its module."""
    unguarded = [
        f"{source.name}: {name}" for source in sources("delivery") for name in _unguarded_tasks(source)
    ]
    assert not unguarded, "wrap one pass of the task in delivery.background.log_errors"


def _unguarded_tasks(source: Source) -> Iterator[str]:
    defined: list[Function] = [*source.nodes(ast.FunctionDef), *source.nodes(ast.AsyncFunctionDef)]
    functions: Functions = {node.name: node for node in sorted(defined, key=lambda node: node.lineno)}
    started = {"run"} & set(functions)  # the gateway starts these
    for node in source.nodes(ast.Call):
        if _name_of(node.func) == "create_task" and node.args:
            coroutine = node.args[0]
            started.add(_name_of(coroutine.func) if isinstance(coroutine, ast.Call) else "")
    for name in started & set(functions) - set(EXEMPT):
        if not _logs_errors(name, functions, set()):
            yield name


def _logs_errors(name: str, functions: Functions, seen: set[str]) -> bool:
    """Return whether a function, or one of its module that it calls, calls `log_errors`."""
    seen.add(name)
    called = {_name_of(node.func) for node in ast.walk(functions[name]) if isinstance(node, ast.Call)}
    return "log_errors" in called or any(
        _logs_errors(inner, functions, seen) for inner in called - seen if inner in functions
    )


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
