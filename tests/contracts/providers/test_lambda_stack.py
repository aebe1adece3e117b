"""deploy/lambda: the templates are valid, and give the functions what the provider and its page promise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox.aws_lambda import handler
from sandbox.aws_lambda.manifest import MAX_MEMORY_MB, MAX_TIMEOUT_SECONDS
from sandbox.aws_lambda.settings import LambdaSettings
from sandbox.config import SandboxConfig

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "lambda"
PAGE = ROOT / "docs" / "guide" / "sandboxes" / "lambda.md"


def _stack(which: str, **variables: str) -> dict[str, Any]:
    """Return what the program prints."""
    program = [sys.executable, "-B", str(DEPLOY / "stack.py"), which]
    done = subprocess.run(program, env=variables, capture_output=True, check=True, timeout=60)
    template: dict[str, Any] = json.loads(done.stdout)
    return template


def _of(template: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the properties of the resources of a type."""
    found = template["Resources"].items()
    return {name: one["Properties"] for name, one in found if one["Type"] == f"AWS::{kind}"}


def test_the_templates_pass_the_linter(tmp_path: Path) -> None:
    """cfn-lint has no remark on any of them."""
    templates = {
        "registry": _stack("registry", ECR_REGIONS="eu-central-1,us-east-1"),
        "first": _stack("sandboxes", SANDBOX_STAGE="production"),
        "second": _stack("sandboxes", SANDBOX_STAGE="dev", SANDBOX_IMAGE_READY="true"),
    }
    for name, template in templates.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(template))
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("cfn-lint")),
            "-r",
            "us-east-1",
            "-t",
            *map(str, tmp_path.glob("*.json")),
        ],
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_functions_exist_once_the_image_is_ready() -> None:
    """The first pass makes everything else; each stage has a variable of its own."""
    for variables, count in (
        ({}, 0),
        ({"SANDBOX_IMAGE_READY": "true"}, 4),
        ({"SANDBOX_IMAGE_READY_DEV": "true"}, 4),
        ({"SANDBOX_IMAGE_READY": "true", "SANDBOX_IMAGE_READY_DEV": "false"}, 0),
        ({"SANDBOX_STAGE": "production", "SANDBOX_IMAGE_READY_DEV": "true"}, 0),
        ({"SANDBOX_STAGE": "production", "SANDBOX_IMAGE_READY_PRODUCTION": "1"}, 4),
    ):
        template = _stack("sandboxes", **variables)
        assert len(_of(template, "Lambda::Function")) == count
        assert len(_of(template, "EFS::FileSystem")) == 1


def test_functions_are_as_the_provider_expects() -> None:
    """ARM64, 512 MB, 300 s, one tenant in an environment, no variables, no URL, and the mount's path."""
    template = _stack("sandboxes", SANDBOX_IMAGE_READY="true")
    functions = _of(template, "Lambda::Function")
    assert not _of(template, "Lambda::Url")
    for name, one in functions.items():
        assert (one["Architectures"], one["MemorySize"], one["Timeout"]) == (["arm64"], 512, 300)
        assert one["TenancyConfig"] == {"TenantIsolationMode": "PER_TENANT"}
        assert "Environment" not in one
        mounts = [files["LocalMountPath"] for files in one.get("FileSystemConfigs", ())]
        assert mounts == ([] if "Nomount" in name else [str(handler.FILES)])
        nets = {subnet["Ref"] for subnet in one["VpcConfig"]["SubnetIds"]}
        assert nets == ({"NonetA", "NonetB"} if name.endswith("Nonet") else {"NetA", "NetB"})
    defaults = LambdaSettings()
    assert (defaults.memory_mb, defaults.function_seconds) == (512, 300)
    assert defaults.memory_mb <= MAX_MEMORY_MB
    assert MAX_TIMEOUT_SECONDS == 300
    assert SandboxConfig().memory_limit <= defaults.memory_mb


def test_functions_without_a_network_reach_the_results_alone() -> None:
    """Their subnets have no route but the one to S3, whose policy names the runs of one bucket."""
    template = _stack("sandboxes", SANDBOX_IMAGE_READY="true")
    routed = {one["RouteTableId"]["Ref"] for one in _of(template, "EC2::Route").values()}
    assert routed == {"PublicRoutes", "NetRoutes"}
    (endpoint,) = _of(template, "EC2::VPCEndpoint").values()
    assert endpoint["RouteTableIds"] == [{"Ref": "NonetRoutes"}]
    (statement,) = endpoint["PolicyDocument"]["Statement"]
    assert statement["Resource"] == {"Fn::Sub": f"${{SandboxBucket.Arn}}/{LambdaSettings().prefix}runs/*"}


def test_commands_get_no_rights_and_cannot_list_the_file_system() -> None:
    """Roles deny code everything but the mount, and the root directory may only be entered."""
    template = _stack("sandboxes")
    for role in _of(template, "IAM::Role").values():
        (statement,) = role["Policies"][0]["PolicyDocument"]["Statement"]
        assert (statement["Effect"], statement["Resource"]) == ("Deny", "*")
        assert all(one.startswith("elasticfilesystem:Client") for one in statement["NotAction"])
    (access_point,) = _of(template, "EFS::AccessPoint").values()
    assert access_point["RootDirectory"]["CreationInfo"] == {
        "OwnerUid": "0", "OwnerGid": "0", "Permissions": "0733",
    }  # fmt: skip
    assert access_point["PosixUser"]["Uid"] != "0"


def test_buckets_are_closed() -> None:
    """No bucket is public, and a policy denies objects outside the prefix and requests without TLS."""
    template = _stack("sandboxes")
    buckets, policies = _of(template, "S3::Bucket"), _of(template, "S3::BucketPolicy")
    assert len(buckets) == len(policies) == 2
    for bucket in buckets.values():
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    for policy in policies.values():
        plain, outside = policy["PolicyDocument"]["Statement"]
        assert plain["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        assert (outside["Effect"], outside["NotResource"]["Fn::Sub"][-2:]) == ("Deny", "/*")


def test_the_registry_copies_images_to_the_other_regions() -> None:
    """ECR_REGIONS names the registry's own region first."""
    assert not _of(_stack("registry", ECR_REGIONS="us-east-1"), "ECR::ReplicationConfiguration")
    template = _stack("registry", ECR_REGIONS="us-east-1, eu-central-1,eu-west-1")
    (replication,) = _of(template, "ECR::ReplicationConfiguration").values()
    (rule,) = replication["ReplicationConfiguration"]["Rules"]
    assert [one["Region"] for one in rule["Destinations"]] == ["eu-central-1", "eu-west-1"]


def test_wrong_variables_are_named() -> None:
    """An unknown stage is an error that lists the stages."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        _stack("sandboxes", SANDBOX_STAGE="test")
    assert caught.value.stderr == b"SANDBOX_STAGE is 'test': it must be one of dev, production\n"


def test_the_image_is_what_the_handler_expects() -> None:
    """The link to workspaces, the directory of the mount and the handler are where the handler has them."""
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f"ln -s {handler.WORKSPACES} /mnt/workspaces" in dockerfile
    assert f"mkdir {handler.FILES}" in dockerfile
    (copied,) = re.findall(r"COPY (sandbox/\S+) /var/task/handler.py", dockerfile)
    assert ROOT / copied == Path(handler.__file__)
    assert 'CMD ["handler.handle"]' in dockerfile


def test_the_page_names_every_setting() -> None:
    """Each setting is in the table of the page."""
    page = PAGE.read_text()
    assert [name for name in LambdaSettings.model_fields if f"`{name}`" not in page] == []
