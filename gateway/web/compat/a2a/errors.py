"""Errors of A2A's JSON-RPC methods."""

from __future__ import annotations

from http import HTTPStatus

from gateway.web.http.problems import HttpProblem

INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601
TASK_NOT_FOUND = -32001
TASK_NOT_CANCELABLE = -32002
PUSH_NOT_SUPPORTED = -32003
UNSUPPORTED_OPERATION = -32004
VERSION_NOT_SUPPORTED = -32009

_FAULTS_OF_PARAMETERS = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.CONFLICT,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)


class A2aError(Exception):
    """The error of a request, with its code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def from_problem(problem: HttpProblem) -> A2aError:
    """Return the error for wrong parameters; raises any other problem, which HTTP answers."""
    if problem.status not in _FAULTS_OF_PARAMETERS:
        raise problem
    return A2aError(INVALID_PARAMS, problem.to_text())
