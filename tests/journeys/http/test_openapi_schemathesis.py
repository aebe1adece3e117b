"""The OpenAPI document and a real gateway agree on generated requests."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from unittest import SkipTest

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from gateway.web.openapi import document
from gateway.web.routes import ROUTES
from gateway_process import gateway

ADMIN_KEY = "an-admin-key-of-the-operator-in-tests"
EXAMPLES = 2
"""The simplest request, with which hypothesis begins, and one that differs from run to run."""

EXHAUSTIVE_EXAMPLES = 25
ON_THE_DEFAULT = re.compile(r"/(agents|workspaces|sandboxes)/\{id\}")
"""Paths whose record there is, so that more than its absence is met."""
CHECKS = (
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A gateway on a loop of its own, for a generator that waits for answers."""

    url: str
    key: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a gateway beside the tests."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()

    def carry_out(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    data = tmp_path_factory.mktemp("gateway") / "data"
    process = carry_out(stack.enter_async_context(gateway(data, env={"DOVECOTE_ADMIN_KEY": ADMIN_KEY})))
    yield Served(url=process.url, key=process.key)
    carry_out(stack.aclose())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


SCHEMA = schemathesis.openapi.from_dict(document(ROUTES))
OPERATIONS = [
    result.ok()
    for result in SCHEMA.get_all_operations()
    if isinstance(result, Ok) and result.ok().label != "DELETE /accounts/me"  # it would end the account
]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_answers_are_as_the_document_says(served: Served, operation: Any, mode: GenerationMode) -> None:
    """No request, right or wrong, is a 5xx, and every answer has a documented status, type and shape."""
    if not compare(served, operation, mode, EXAMPLES):
        pytest.skip("there is nothing of this kind to send")


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
def test_many_answers_are_as_the_document_says(served: Served, mode: GenerationMode) -> None:
    """The same holds for many requests to each operation."""
    compared = [compare(served, operation, mode, EXHAUSTIVE_EXAMPLES) for operation in OPERATIONS]
    assert sum(compared) > len(OPERATIONS) // 2


def compare(served: Served, operation: Any, mode: GenerationMode, examples: int) -> bool:
    """Compare answers to generated requests with the document; False if no request can be generated."""
    key = ADMIN_KEY if operation.path == "/accounts" else served.key

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if ON_THE_DEFAULT.search(operation.path) and operation.method.lower() != "delete":
            case.path_parameters["id"] = "default"
        headers = {"Authorization": f"Bearer {key}"}
        answer = case.call(base_url=served.url, headers=headers, timeout=30)
        case.validate_response(answer, checks=list(CHECKS), headers=headers)

    try:
        ask()
    except (Unsatisfiable, SkipTest):
        return False
    return True


def test_the_document_is_served_as_it_is_made(served: Served) -> None:
    """The served document is the one of the route table."""
    assert requests.get(f"{served.url}/openapi.json", timeout=10).json() == document(ROUTES)
