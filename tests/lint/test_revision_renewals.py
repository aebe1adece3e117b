"""Each statement that changes what turns keep of an account is in a function that renews its revision first.

The renewal locks the account. If one transaction locked it after rows of it, and another one before, they
could wait for each other. A turn reads records and people through `gateway.accounts.account_reader`, which
keeps them while the revision of the account is the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from source_trees import PACKAGES, Source, sources

KEPT = {
    "records": {"insert", "update", "delete"},
    "identities": {"insert", "insert_on_conflict", "update", "delete"},
    "persons": {"delete"},
}
"""The statements that change what is kept, by table. A person's subject is written once."""

ALLOWED = {
    "gateway/store/accounts/persons.py insert_identity": "its subject stays the same, or `see` renews",
    "gateway/store/accounts/persons.py set_failures": "the wrong codes of an identity are not kept",
}


def _function_calls(function: ast.AST) -> list[tuple[str, str]]:
    """Return the calls in a function by name, with the name of the first argument, in their order."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))
    return [
        (
            ast.unparse(call.func).rpartition(".")[2],
            call.args[0].id if call.args and isinstance(call.args[0], ast.Name) else "",
        )
        for call in calls
    ]


def _unrenewed(source: Source) -> Iterator[str]:
    """Yield the functions of a module that change what is kept without a renewal before."""
    functions = (
        node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    for function in functions:
        calls = _function_calls(function)
        changes = [place for place, (name, table) in enumerate(calls) if name in KEPT.get(table, ())]
        if changes and not any(name == "renew" for name, _table in calls[: changes[0]]):
            yield f"{source.name} {function.name}"


def test_the_revision_is_renewed_before_what_turns_keep_is_changed() -> None:
    """Only the functions with a reason change a kept table and leave the revision."""
    found = {one for source in sources(*PACKAGES) for one in _unrenewed(source)}
    assert found == set(ALLOWED)
