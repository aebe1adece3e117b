"""A disk that cannot be written is the documented 503 of every request, also of a write to a workspace."""

from __future__ import annotations

import errno
import os

import pytest

from delivery.exhaustion import EXHAUSTED, Resource
from gateway.web.api.files.workspace_files import translate_errors
from gateway.web.http.problems import HttpProblem, translate_error


async def fail(number: int) -> None:
    """Fail as a write to a file does."""
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "resource"),
    [
        (errno.ENOSPC, Resource.DISK),
        (errno.EDQUOT, Resource.DISK),
        (errno.EROFS, Resource.WRITABLE_DISK),
        (errno.EIO, Resource.WRITABLE_DISK),
    ],
)
async def test_a_write_that_the_disk_refuses_is_unavailable(number: int, resource: Resource) -> None:
    """The path of the request is not wrong: 503 says what the disk lacks, and when to try again."""
    with pytest.raises(OSError, match=os.strerror(number)) as raised:
        await translate_errors(fail(number))
    problem = translate_error(raised.value)
    assert (problem.status, problem.detail) == (503, EXHAUSTED[resource])
    assert "Retry-After" in problem.headers


async def test_other_refusals_of_the_file_system_name_the_path() -> None:
    """A name that is too long is a 422."""
    with pytest.raises(HttpProblem) as raised:
        await translate_errors(fail(errno.ENAMETOOLONG))
    assert raised.value.status == 422
