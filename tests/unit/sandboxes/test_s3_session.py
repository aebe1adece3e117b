"""Sessions of the AWS SDK share what does not change, and nothing else."""

from __future__ import annotations

import pytest

from sandbox.s3 import open_aws_session


async def test_sessions_share_descriptions_and_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's files are read once in a process; each session looks for credentials itself."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret of the test")
    keys, loaders = [], []
    for key in ("first", "second"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        session = open_aws_session()
        loaders.append(session.get_component("data_loader"))
        keys.append((await session.get_credentials()).access_key)
    assert keys == ["first", "second"]
    assert loaders[0] is loaders[1]
