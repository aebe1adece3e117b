"""Whole gateways whose sandboxes are elsewhere: their environment, for the services on loopback."""

from __future__ import annotations

from collections.abc import Mapping

import agentrun_service
import daytona_service
import e2b_service
import kubernetes_service
import lambda_service
from service_processes import service_url


def e2b() -> Mapping[str, str]:
    """Return the variables of a gateway whose sandboxes are there."""
    url = service_url("e2b_service")
    return {
        "DOVECOTE_SANDBOX__PROVIDER": "e2b",
        "DOVECOTE_SANDBOX__E2B__API_KEY": e2b_service.API_KEY,
        "DOVECOTE_SANDBOX__E2B__API_URL": url,
        "DOVECOTE_SANDBOX__E2B__SANDBOX_URL": url,
        "DOVECOTE_SANDBOX__E2B__HTTP_VERSION": "1.1",
    }


def daytona() -> Mapping[str, str]:
    """Return the variables of a gateway whose sandboxes are there."""
    return {
        "DOVECOTE_SANDBOX__PROVIDER": "daytona",
        "DOVECOTE_SANDBOX__DAYTONA__API_KEY": daytona_service.API_KEY,
        "DOVECOTE_SANDBOX__DAYTONA__API_URL": service_url("daytona_service"),
    }


def kubernetes() -> Mapping[str, str]:
    """Return the variables of a gateway whose sandboxes are there."""
    return {
        "DOVECOTE_SANDBOX__PROVIDER": "kubernetes",
        "DOVECOTE_SANDBOX__KUBERNETES__TOKEN": kubernetes_service.TOKEN,
        "DOVECOTE_SANDBOX__KUBERNETES__API_URL": service_url("kubernetes_service"),
    }


def agentrun() -> Mapping[str, str]:
    """Return the variables of a gateway whose sandboxes are there."""
    settings = agentrun_service.settings_for(service_url("agentrun_service"))
    return {
        "DOVECOTE_SANDBOX__PROVIDER": "agentrun",
        **{f"DOVECOTE_SANDBOX__AGENTRUN__{name.upper()}": value for name, value in settings.items()},
    }


def aws_lambda() -> Mapping[str, str]:
    """Return the variables of a gateway that has these sandboxes beside the host's."""
    endpoint, s3_endpoint = service_url("lambda_service").split()
    return {
        "DOVECOTE_SANDBOX__LAMBDA__ENDPOINT": endpoint,
        "DOVECOTE_SANDBOX__LAMBDA__S3_ENDPOINT": s3_endpoint,
        "DOVECOTE_SANDBOX__LAMBDA__BUCKET": lambda_service.BUCKET,
        "DOVECOTE_SANDBOX__LAMBDA__ACCESS_KEY": lambda_service.ACCESS_KEY,
        "DOVECOTE_SANDBOX__LAMBDA__SECRET_KEY": lambda_service.SECRET_KEY,
        "SANDBOX_FN_MOUNT_NONET": "sandbox-mount-nonet",
        "SANDBOX_FN_NOMOUNT_NONET": "sandbox-nomount-nonet",
    }
