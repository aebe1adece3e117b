"""The storm sends requests that the API has, and bodies that it accepts."""

from __future__ import annotations

import re

from bench.storm.bodies import mcp_call
from bench.storm.choices import Choices
from bench.storm.requests import OPERATIONS, WEIGHTS, choose_request
from gateway.web.compat.mcp_tools import TOOLS
from gateway.web.routes import ROUTES

RECEIVER = "http://127.0.0.1:9"


def _without_names(route: str) -> str:
    """Return a route with its parameters, and parts of its path that a storm names, as stars."""
    return re.sub(r"\{[^}]*\}|(?<=/files/)[\w.]+", "*", route)


def test_every_request_of_the_storm_is_one_of_the_api() -> None:
    """A route that is renamed would only answer 404, and the storm would test less than it says."""
    known = {_without_names(f"{route.method} {route.path}") for route in ROUTES}
    sent = {_without_names(route) for lines in OPERATIONS.values() for _, route, _ in lines}
    assert sent <= known


def test_the_bodies_of_the_storm_are_valid() -> None:
    """Every kind of request is chosen, with bodies of the route's model."""
    choices = Choices(1, receiver=RECEIVER)
    models = {_without_names(f"{one.method} {one.path}"): one.request_model for one in ROUTES}
    assert set(WEIGHTS) == set(OPERATIONS)
    seen = set()
    for _ in range(2000):
        request = choose_request(choices, list(OPERATIONS))
        seen.add((request.method, request.route))
        model = models[_without_names(f"{request.method} {request.route}")]
        if model is not None and not isinstance(request.body, bytes):
            model.model_validate(request.body or {})
    assert len(seen) == sum(len({route for _, route, _ in lines}) for lines in OPERATIONS.values())


def test_the_storm_calls_tools_that_are_served() -> None:
    """A call of an unknown tool is an answer with 200, and would test nothing."""
    choices = Choices(1, receiver=RECEIVER)
    called = set()
    for _ in range(50):
        call = mcp_call(choices)["params"]
        TOOLS[call["name"]].arguments.model_validate(call["arguments"])
        called.add(call["name"])
    assert len(called) == 3


def test_ids_of_answers_are_named_by_later_requests() -> None:
    """The latest ids of each kind are remembered, wherever an answer has them."""
    choices = Choices(1, receiver=RECEIVER)
    assert choices.path("/turns/{trn}/cancel") == "/turns/trn_none/cancel"
    choices.remember({"items": [{"turnId": "trn_01m8exk2ygmm326kh52bef2p71"}], "text": "trn_x"})
    assert choices.path("/turns/{trn}/cancel") == "/turns/trn_01m8exk2ygmm326kh52bef2p71/cancel"
