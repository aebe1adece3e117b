"""Encrypt secrets at rest with AES-256-GCM; each ciphertext is bound to its row and field.

An envelope is `v1.<key id>.<base64url of nonce and ciphertext>`. Its additional data is the version, the
key id and the context `table:row:field`, so that a ciphertext copied to another row cannot be decrypted.
The first key of the ring encrypts; every key decrypts.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NewType, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

MIN_RANDOM_LENGTH = 32
"""Minimum characters of a key that is used as it is; a shorter one is stretched first."""
PRIVATE = 0o600
"""The permissions of a file that only its owner may read."""
_VERSION = "v1"
_NONCE_LENGTH = 12

AssociatedData = NewType("AssociatedData", str)
"""The context a secret is bound to: `table:row:field`."""

Remedy = Literal["operator"]


class SecretsError(Exception):
    """The secrets cannot be used as they are configured."""

    remedy: Remedy = "operator"


class DecryptionFailed(SecretsError):
    """An envelope does not open: its key is not in the ring, or it was moved or changed."""


class InvalidSecretKey(SecretsError):
    """A secret key is missing or blank."""


class Secret:
    """Text that is masked in logs and reprs; compare it with `matches` only."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def matches(self, candidate: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self._text.encode(), candidate.encode("utf-8", "surrogatepass"))

    def __eq__(self, _other: object) -> NoReturn:
        raise TypeError("a secret is compared by matches() only")

    __hash__ = None  # type: ignore[assignment]  # unhashable: values that cannot be compared are no dictionary keys

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


def associated_data(table: str, row: str, field: str) -> AssociatedData:
    """Return the context of a field; table and row contain no colon, the field may."""
    return AssociatedData(f"{table}:{row}:{field}")


class _RingKey:
    """One key of the ring with its public name."""

    __slots__ = ("_raw", "cipher", "id")

    def __init__(self, text: str) -> None:
        if not text.strip():
            raise InvalidSecretKey(
                "a secret key is blank: make one with "
                "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`"
            )
        raw = text.strip().encode()
        if len(raw) < MIN_RANDOM_LENGTH:
            raw = Scrypt(salt=b"dovecote secret keys", length=32, n=2**14, r=8, p=1).derive(raw)
        material = HKDF(SHA256(), 40, salt=None, info=b"dovecote field encryption").derive(raw)
        self.cipher = AESGCM(material[:32])
        self.id = material[32:].hex()
        self._raw = raw

    def derive(self, purpose: str) -> bytes:
        """Return a key of 32 bytes for a purpose other than sealing, of no use for any other."""
        info = b"dovecote " + purpose.encode()
        return HKDF(SHA256(), 32, salt=None, info=info).derive(self._raw)


class Vault:
    """Encrypts and decrypts the secrets of records."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Set the ring, first key first; raises WeakKey."""
        if not keys:
            raise InvalidSecretKey("the key ring is empty: at least one secret key is needed")
        ring = [_RingKey(key) for key in keys]
        self._first = ring[0]
        self._ring = {key.id: key for key in ring}

    def __repr__(self) -> str:
        return f"Vault({len(self._ring)} keys)"

    def encrypt(self, context: AssociatedData, text: str) -> str:
        """Return the envelope of `text`, which opens at `where` only."""
        nonce = secrets.token_bytes(_NONCE_LENGTH)
        key = self._first
        sealed = nonce + key.cipher.encrypt(nonce, text.encode(), _additional_data(key.id, context))
        return f"{_VERSION}.{key.id}.{base64.urlsafe_b64encode(sealed).decode()}"

    def decrypt(self, context: AssociatedData, envelope: str | bytes) -> str:
        """Return the text of an envelope sealed at `where`; raises DecryptionFailed."""
        key_id, raw = _parse_envelope(envelope)
        key = self._ring.get(key_id)
        if key is None:
            raise DecryptionFailed(
                f"the secret at {context.rpartition(':')[0]} was sealed with key {key_id}, which is not in "
                "the ring: add that key to DOVECOTE_SECRET_KEYS; the first one there encrypts"
            )
        try:
            return key.cipher.decrypt(
                raw[:_NONCE_LENGTH], raw[_NONCE_LENGTH:], _additional_data(key_id, context)
            ).decode()
        except (InvalidTag, ValueError) as error:
            raise DecryptionFailed(
                f"the secret at {context.rpartition(':')[0]} was moved or changed"
            ) from error

    def keys_for(self, purpose: str) -> tuple[bytes, ...]:
        """Return a key of each in the ring for a purpose such as signing: the first signs, all verify."""
        return tuple(key.derive(purpose) for key in self._ring.values())

    @property
    def first_key_id(self) -> str:
        """The public name of the key that encrypts."""
        return self._first.id

    @property
    def is_rotating(self) -> bool:
        """Some envelopes may be of an older key than the first."""
        return len(self._ring) > 1

    def is_current(self, envelope: str | bytes) -> bool:
        """Return whether the envelope was encrypted with the first key of the ring."""
        return _parse_envelope(envelope)[0] == self._first.id

    def reencrypt(self, context: AssociatedData, envelope: str | bytes) -> str:
        """Return the same secret sealed with the first key."""
        return self.encrypt(context, self.decrypt(context, envelope))


def _additional_data(key_id: str, context: AssociatedData) -> bytes:
    return f"{_VERSION}|{key_id}|{context}".encode()


def _parse_envelope(envelope: str | bytes) -> tuple[str, bytes]:
    if not isinstance(envelope, str | bytes):  # a damaged column
        raise DecryptionFailed("this is no envelope of ours")
    text = envelope if isinstance(envelope, str) else envelope.decode("ascii", "replace")
    version, _, rest = text.partition(".")
    key_id, _, body = rest.partition(".")
    try:
        raw = base64.b64decode(body, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise DecryptionFailed("this is no envelope of ours") from error
    if version != _VERSION or len(raw) <= _NONCE_LENGTH:
        raise DecryptionFailed("this is no envelope of ours")
    return key_id, raw


def write_private(path: Path, text: str) -> None:
    """Write a file that only we may read, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def read_private(path: Path) -> str:
    """Return the text of a private file, empty when there is none; others are shut out of it first."""
    if not path.exists():
        return ""
    if stat.S_IMODE(path.stat().st_mode) != PRIVATE:  # the file system may be read-only
        path.chmod(PRIVATE)
    return path.read_text(encoding="ascii", errors="replace").strip()


def key_file(data: Path) -> Path:
    """Return the file of the key that is made in a data directory where no keys are configured."""
    return data / "secret.key"


def open_vault(data: Path, keys: Sequence[Any] = ()) -> Vault:
    """Return the vault of these keys (texts or SecretStr), or else of the generated `<data>/secret.key`.

    A key that was generated before keys were configured still decrypts.
    """
    given = [key if isinstance(key, str) else str(key.get_secret_value()) for key in keys]
    path = key_file(data)
    generated = read_private(path)
    if given:
        return Vault([*given, generated] if generated else given)
    if not generated:
        generated = secrets.token_urlsafe(32)
        write_private(path, generated)
    return Vault([generated])
