"""Why a sign-in failed."""

from __future__ import annotations

from typing import Literal

SignInFailure = Literal["denied", "expired", "no-access", "refused", "unavailable"]
"""What the console tells the person; the log has the detail."""


class SignInFailed(Exception):
    """A person is not signed in."""

    remedy = "operator"

    def __init__(self, failure: SignInFailure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
