"""What waits for the kernel is called in a thread, so that the event loop serves the other accounts.

The kernel changes control groups under one lock, which the end of any container on the machine holds for tens
of milliseconds, and a durable write waits for the disk. A process is started by `sandbox.host.run.execution`:
`subprocess` and asyncio hold the interpreter's lock until the new process runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from source_trees import sources

BLOCKING = frozenset(
    {"apply_limits", "create_run_cgroup", "remove", "remove_all", "remove_sandbox", "sweep"}
    | {"write_durably", "rmtree"}
    | {"Popen", "create_subprocess_exec", "create_subprocess_shell", "start_process"}
)


def test_control_groups_are_changed_and_processes_started_in_threads() -> None:
    """A coroutine of the host provider passes such a function to a thread."""
    found = [
        f"{source.name}: {name}"
        for source in sources("sandbox")
        if source.name.startswith("sandbox/host/")
        for function in source.nodes(ast.AsyncFunctionDef)
        for name in _called(function)
    ]
    assert not found, (
        "call it with shielded_call or asyncio.to_thread; start processes with execution.start_run"
    )


def test_a_blocking_call_is_found() -> None:
    """The rule sees a call, and neither a reference nor a call in a function that a thread runs."""
    tree = ast.parse(
        "async def run():\n"
        "    group = cgroups.create_run_cgroup(spec)\n"
        "    await shielded_call(group.remove)\n"
        "    def in_thread():\n"
        "        write_durably(path)\n"
        "    while not group.remove():\n"
        "        await asyncio.create_subprocess_exec(program)\n"
    )
    (function,) = (node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef))
    assert sorted(_called(function)) == ["create_run_cgroup", "create_subprocess_exec", "remove"]


def _called(function: ast.AsyncFunctionDef) -> Iterator[str]:
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in BLOCKING:
                yield name
