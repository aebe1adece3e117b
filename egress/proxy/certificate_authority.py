"""A certificate authority of the gateway, for hosts whose requests the proxy signs with a credential.

Only sandboxes of this gateway trust it: its certificate is in a bundle that is mounted into them.
"""

from __future__ import annotations

import os
import ssl
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_YEARS = 10
LEAF_DAYS = 30
RENEW_DAYS = 20
"""Days after which a certificate of a host is made again."""
MAX_HOSTS = 256
"""Certificates of hosts that are kept in memory."""
_CLOCK_SKEW = timedelta(days=1)
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Dovecote credential proxy")])
_PEM = serialization.Encoding.PEM


class CertificateAuthority:
    """Makes certificates for hosts; each is made when it is first needed."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self._host_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[str, tuple[datetime, ssl.SSLContext]] = OrderedDict()

    @classmethod
    def create(cls) -> Self:
        """Return a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_NAME)
            .issuer_name(_NAME)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + timedelta(days=365 * AUTHORITY_YEARS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, pem: str) -> Self:
        """Return the authority that `dump` wrote; raises ValueError."""
        raw = pem.encode()
        key = serialization.load_pem_private_key(raw, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the certificate authority is not one of an elliptic curve")
        return cls(x509.load_pem_x509_certificate(raw), key)

    def dump(self) -> str:
        """Return certificate and private key as PEM: a secret."""
        return self.certificate_pem() + _private_pem(self._key).decode()

    def certificate_pem(self) -> str:
        """Return the certificate, which sandboxes trust."""
        return self._certificate.public_bytes(_PEM).decode()

    def context_for(self, host: str) -> ssl.SSLContext:
        """Return the TLS context of a server that stands for `host` and refuses other server names."""
        now = datetime.now(UTC)
        kept = self._contexts.get(host)
        if kept is None or now - kept[0] > timedelta(days=RENEW_DAYS):
            kept = self._contexts[host] = (now, self._make_context(host, now))
            while len(self._contexts) > MAX_HOSTS:
                self._contexts.popitem(last=False)
        self._contexts.move_to_end(host)
        return kept[1]

    def _make_context(self, host: str, now: datetime) -> ssl.SSLContext:
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self._certificate.subject)
            .public_key(self._host_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + timedelta(days=LEAF_DAYS))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load(context, certificate.public_bytes(_PEM) + _private_pem(self._host_key))

        def check_name(_socket: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
            is_right = name is not None and name.lower().removesuffix(".") == host
            return None if is_right else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

        context.sni_callback = check_name
        return context


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Load a certificate with its key from memory: the ssl module reads files only."""
    descriptor = os.memfd_create("certificate")
    try:
        os.write(descriptor, chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
