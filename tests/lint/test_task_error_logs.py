"""Every background task of delivery and gateway logs its errors: none may end the gateway process."""

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
    "_close_on_stop": "waits for an event only",
    "drain_on_stop": "waits for events and locks only",
    "gateway/agents/clients/pydantic_ai_client.py: _run": "the turn that asks the model gets its error",
    "gateway/agents/custom/runner.py: _run_function": "its turn gets every error as an event",
    "gateway/environments/workspace_search.py: _search_file": "the search gets its error",
    "gateway/infra/egress_sockets.py: close": "ends the tasks of one sandbox and closes its sockets",
    "gateway/infra/embedded_nats.py: _kill_if_unresponsive": "one probe; the next check begins another",
    "gateway/infra/shard_leases.py: run": "starts _find_work and _hold, which log every error",
    "gateway/ingress/interactions/status_reactions.py: run": "starts _work, which logs every error",
    "gateway/ingress/commands/sandbox_commands.py: run": "starts _run_one, which logs every error",
    "gateway/maintenance/snapshot_worker.py: run": "starts _run_regularly and _save, which log every error",
    "gateway/maintenance/work_share.py: run": "runs ReplicaShares.run, which logs every error",
    "gateway/maintenance/workspace_sync.py: run": "starts _run_regularly, which logs every error",
    "gateway/sign_in/token_revocation.py: run": "starts _work, which logs every error",
    "gateway/tools/live_output.py: _publish_regularly": "ends with its call, which drops the error",
    "gateway/tools/mcp/http_connection.py: _hold": "those who use the connection get its error",
    "gateway/web/compat/mcp.py: _answer": "the request with the batch gets its error",
    "gateway/tools/mcp/sign_ins/oauth_flow.py: _send": "the sign-in that waits for it gets its error",
    "gateway/turns/bounds.py: run": "waits for an event only; the other run has its attempt get the error",
    "gateway/turns/deltas.py: _send_regularly": "ends with its turn, which drops the error",
    "gateway/turns/worker.py: run": "starts the loops of other modules, which log every error",
    "gateway/web/stream/live_view.py: _copy": "ends with its connection, which drops the error",
    "gateway/web/stream/sse.py: _write_all": "ends with its connection, which drops the error",
    "gateway/web/stream/websocket.py: _read_frames": "the connection's own task gets its error",
    "gateway/web/stream/websocket.py: run": "the connection's own task gets its error",
}
"""Tasks by name, or by module and name, with what happens to their errors."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Functions = dict[str, Function]


def test_every_background_task_logs_its_errors() -> None:
    """A coroutine that is started as a task logs every error, itself or in a function of its module."""
    unguarded = [
        f"{source.name}: {name}"
        for source in sources("delivery", "gateway")
        if not source.name.startswith("gateway/cli/")  # a command of a person ends with its error
        for name in _unguarded_tasks(source)
        if name not in EXEMPT and f"{source.name}: {name}" not in EXEMPT
    ]
    assert not unguarded, "wrap one pass of the task in delivery.background.log_errors"


def _unguarded_tasks(source: Source) -> Iterator[str]:
    defined: list[Function] = [*source.nodes(ast.FunctionDef), *source.nodes(ast.AsyncFunctionDef)]
    functions: Functions = {node.name: node for node in sorted(defined, key=lambda node: node.lineno)}
    started = {name for name, node in functions.items() if _runs_until_stopped(node)}
    for task in _started_tasks(source.nodes(ast.Call)):
        started.add(_name_of(task.func))
    for name in sorted(started & set(functions)):
        if not _logs_errors(name, functions, set()):
            yield name


def _runs_until_stopped(function: Function) -> bool:
    """Return whether others start a function as a task, which they end with the event `stop`."""
    parameters = function.args.args + function.args.kwonlyargs
    events = {one.arg for one in parameters if one.annotation and _name_of(one.annotation) == "Event"}
    is_private = function.name.startswith("_")
    is_coroutine = isinstance(function, ast.AsyncFunctionDef) and not function.decorator_list
    return is_coroutine and not is_private and "stop" in events and not _is_generator(function)


def _is_generator(function: Function) -> bool:
    return any(isinstance(node, ast.Yield) for node in ast.walk(function))


def _started_tasks(calls: list[ast.Call]) -> Iterator[ast.Call]:
    """Yield the calls whose coroutines become tasks."""
    for node in calls:
        if _name_of(node.func) == "create_task" and node.args and isinstance(node.args[0], ast.Call):
            yield node.args[0]


def _logs_errors(name: str, functions: Functions, seen: set[str]) -> bool:
    """Return whether a function logs all errors, or one of its module that it calls and waits for."""
    seen.add(name)
    nodes = list(ast.walk(functions[name]))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    tasks = set(_started_tasks(calls))
    called = {_name_of(node.func) for node in calls if node not in tasks}
    if "log_errors" in called or any(_catches_all(node) for node in nodes):
        return True
    return any(_logs_errors(inner, functions, seen) for inner in called - seen if inner in functions)


def _catches_all(node: ast.AST) -> bool:
    """Return whether a node is an `except Exception` that does not raise again."""
    return (
        isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and _name_of(node.type) == "Exception"
        and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    )


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
