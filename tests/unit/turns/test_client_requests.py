"""What an API's request adds to a turn, as it is stored."""

from __future__ import annotations

from gateway.agents.client_request import ClientRequest


def test_a_response_that_an_earlier_version_deleted_stays_deleted() -> None:
    """It marked the whole turn; the first response is mostly the only one."""
    assert ClientRequest.parse({"deleted": True}).deleted_responses == ("",)


def test_deletions_are_stored() -> None:
    """The ends of the ids come back as they were."""
    request = ClientRequest(deleted_responses=("", "-call_1"))
    assert ClientRequest.parse(request.to_json()) == request
