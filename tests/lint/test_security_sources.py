"""M4 and M8: rules of the source that signatures and addresses depend on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from source_trees import Source, sources

_SECRET_NAME = re.compile(r"(^|_)(secret|token|signature|mac|hmac|password|bearer)$")


def _compared(source: Source) -> Iterator[int]:
    """Yield the lines where something named like a secret is compared by == or != with a computed value."""
    for node in source.nodes(ast.Compare):
        if any(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops):
            sides = [node.left, *node.comparators]
            constant = any(isinstance(side, ast.Constant) for side in sides)
            names = [
                side.attr if isinstance(side, ast.Attribute) else side.id
                for side in sides
                if isinstance(side, ast.Attribute | ast.Name)
            ]
            if not constant and any(_SECRET_NAME.search(name) for name in names):
                yield node.lineno


NOT_SECRET = {
    "gateway/store/accounts/encrypted_columns.py",  # SQL that compares an encrypted text with the one it read
}


def test_m4_secrets_are_compared_in_constant_time() -> None:
    """Nothing named secret, token, signature, password or MAC is compared by `==` or `!=`."""
    found = [
        f"{source.name}:{line}"
        for source in sources("gateway", "delivery", "channels", "sandbox")
        if "simulator" not in source.parts and source.name not in NOT_SECRET
        for line in _compared(source)
    ]
    assert found == []


def _settings_of_sessions(source: Source) -> Iterator[tuple[int, set[str]]]:
    for node in source.nodes(ast.Call):
        if getattr(node.func, "attr", "") == "ClientSession":
            wanted = {one.arg or "": one.value for one in node.keywords}
            trust = wanted.get("trust_env")
            yield node.lineno, {"trust_env"} if isinstance(trust, ast.Constant) and trust.value else set()


def test_m8_no_session_trusts_the_environments_proxies() -> None:
    """No client that calls out takes a proxy from the environment."""
    found = [
        f"{source.name}:{line}"
        for source in sources("gateway", "delivery", "channels")
        for line, options in _settings_of_sessions(source)
        if options
    ]
    assert found == []
