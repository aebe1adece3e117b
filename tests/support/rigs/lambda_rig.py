"""Open the Lambda provider in a test: the SDK on a loopback service that runs the real handler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lambda_service import ACCESS_KEY, BUCKET, SECRET_KEY
from sandbox.aws_lambda.settings import LambdaSettings
from sandbox.registry import built_in
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import RigFactory
from service_processes import service_url


def lambda_settings(**changes: Any) -> LambdaSettings:
    """Return the settings of the loopback service."""
    endpoint, s3_endpoint = service_url("lambda_service").split()
    fields = {
        "mount_net": "sandbox-mount-net",
        "mount_nonet": "sandbox-mount-nonet",
        "nomount_net": "sandbox-nomount-net",
        "nomount_nonet": "sandbox-nomount-nonet",
        "bucket": BUCKET,
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "endpoint": endpoint,
        "s3_endpoint": s3_endpoint,
    }
    return LambdaSettings.model_validate(fields | changes)


def lambda_rig(directory: Path, **changes: Any) -> ProviderRig:
    """Return a rig with some settings changed."""
    return ProviderRig(
        name="loopback",
        plugin=built_in()["lambda"],
        settings=lambda_settings(**changes),
        directory=directory,
        runs_on="a loopback service written from the vendor's documents, which runs the real handler",
    )


VARIANTS: dict[str, RigFactory] = {"loopback": lambda_rig}
