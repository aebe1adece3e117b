"""A problem in the formats of other protocols is one text, which says nothing twice."""

from __future__ import annotations

from gateway.web.http.problems import HttpProblem, openai_error, storage_full
from sandbox.config import ConfigProblem


def test_the_fault_of_a_field_is_not_repeated() -> None:
    """A problem that is that of its one field has the field as `param` only."""
    error = openai_error(storage_full("the account stores 3 MB", "/file"))
    assert (error["message"], error["param"]) == ("the account stores 3 MB", "file")


def test_faults_that_the_detail_does_not_name_are_added() -> None:
    """Each has its pointer; OpenAI's clients show nothing but the message."""
    faults = [
        ConfigProblem(pointer="/a", detail="is required"),
        ConfigProblem(pointer="/b/0", detail="must be a string"),
    ]
    whole = HttpProblem(422, "1 problem", errors=[ConfigProblem(pointer="", detail="give a or b")])
    assert whole.to_text() == "1 problem: give a or b"
    problem = HttpProblem(422, "2 problems with the input", errors=faults)
    assert problem.to_text() == "2 problems with the input: /a: is required; /b/0: must be a string"
    assert openai_error(problem)["message"] == problem.to_text()
