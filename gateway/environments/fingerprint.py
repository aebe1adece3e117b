"""Hashes of what a sandbox is configured to be: they change with the configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from gateway.environments.environment import Environment


def fingerprint_all(environments: Mapping[str, Environment], default: Environment) -> str:
    """Return one fingerprint of all sandboxes that an agent works in."""
    if len(environments) <= 1:
        return fingerprint(default)
    fingerprints = json.dumps({name: fingerprint(one) for name, one in environments.items()}, sort_keys=True)
    return hashlib.sha256(fingerprints.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprint(environment: Environment) -> str:
    """Return the hash of a sandbox's configuration; it changes with the configuration."""
    exact = json.dumps(
        [
            environment.provider,
            environment.sandbox_record,
            environment.workspace,
            environment.config.model_dump(mode="json", exclude_defaults=True),
        ],
        sort_keys=True,
    )
    return hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()
