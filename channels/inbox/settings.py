"""Types of settings that adapters share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, SecretStr, StringConstraints


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_secret(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if len(text.strip()) < 8 or not text.isascii() or not text.isprintable():  # noqa: PLR2004
        raise ValueError("must have at least 8 characters, all of them printable ASCII")
    return secret


PlatformId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$"), BeforeValidator(_as_text)]
"""An id of the platform; a number is accepted."""

Secret = Annotated[SecretStr, AfterValidator(_check_secret)]
"""A token or a key for signatures."""
