"""Print a CloudFormation template: `python3 deploy/lambda/stack.py registry|sandboxes`.

Variables (docs/guide/sandboxes/lambda.md): SANDBOX_STAGE (dev or production), SANDBOX_IMAGE_READY_DEV,
SANDBOX_IMAGE_READY_PRODUCTION, or SANDBOX_IMAGE_READY for both, and ECR_REGIONS, the registry's first.
Needs Python 3.11 and the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudformation import Resource, Resources, attribute, policy, ref, resource, sub
from network import PREFIX, network

STAGES = ("dev", "production")
TRUE = frozenset({"1", "true", "yes"})
WORKSPACE_PREFIX = "dovecote/"
"""The prefix of workspaces: `[workspaces.s3] prefix`."""

MEMORY_MB, TIMEOUT_SECONDS, TEMPORARY_MB, POSIX_ID = 512, 300, 2048, 1000
RESULT_DAYS, LOG_DAYS = 1, 30
KINDS = {
    "MountNet": "mount-net",
    "MountNonet": "mount-nonet",
    "NomountNet": "nomount-net",
    "NomountNonet": "nomount-nonet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What the variables say."""

    stage: str
    is_image_ready: bool
    regions: tuple[str, ...]

    @property
    def keeps_data(self) -> bool:
        """Whether deleting the stack keeps the workspaces."""
        return self.stage == "production"

    @property
    def repository(self) -> str:
        """The name of the image repository."""
        return f"dovecote-sandbox-{self.stage}"


def read_options(environment: Mapping[str, str]) -> StackOptions:
    """Read the variables; raises ValueError."""
    stage = environment.get("SANDBOX_STAGE", "dev")
    if stage not in STAGES:
        raise ValueError(f"SANDBOX_STAGE is {stage!r}: it must be one of {', '.join(STAGES)}")
    general = environment.get("SANDBOX_IMAGE_READY", "")
    ready = environment.get(f"SANDBOX_IMAGE_READY_{stage.upper()}", general)
    regions = tuple(one.strip() for one in environment.get("ECR_REGIONS", "").split(",") if one.strip())
    if len(set(regions)) != len(regions):
        raise ValueError("ECR_REGIONS names a region twice")
    return StackOptions(stage=stage, is_image_ready=ready.lower() in TRUE, regions=regions)


def template(description: str, resources: Resources, **sections: Any) -> Resource:
    """Return a template."""
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": description,
        **sections,
        "Resources": resources,
    }


def registry(options: StackOptions) -> Resource:
    """Return the template of the image registry, for the first region; images are copied to the others."""
    repository = {
        "RepositoryName": options.repository,
        "ImageTagMutability": "IMMUTABLE",
        "ImageScanningConfiguration": {"ScanOnPush": True},
        "EncryptionConfiguration": {"EncryptionType": "AES256"},
        "LifecyclePolicy": {"LifecyclePolicyText": json.dumps({"rules": [_KEEP_TEN_IMAGES]})},
    }
    resources: Resources = {"Repository": resource("ECR::Repository", repository, keep=True)}
    if options.regions[1:]:
        copies = [{"Region": one, "RegistryId": ref("AWS::AccountId")} for one in options.regions[1:]]
        filters = [{"Filter": options.repository, "FilterType": "PREFIX_MATCH"}]
        rules = [{"Destinations": copies, "RepositoryFilters": filters}]
        configuration = {"ReplicationConfiguration": {"Rules": rules}}
        resources["Replication"] = resource("ECR::ReplicationConfiguration", configuration)
    outputs = {"RepositoryUri": {"Value": attribute("Repository", "RepositoryUri")}}
    return template(f"Dovecote sandbox image ({options.stage})", resources, Outputs=outputs)


_KEEP_TEN_IMAGES = {
    "rulePriority": 1,
    "description": "keep ten images",
    "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 10},
    "action": {"type": "expire"},
}


def sandboxes(options: StackOptions) -> Resource:
    """Return the template of a region; its functions exist once there is an image."""
    resources = network() | file_system(options) | buckets(options) | roles(options)
    outputs: Resource = {
        "SandboxBucket": {"Value": ref("SandboxBucket")},
        "WorkspaceBucket": {"Value": ref("WorkspaceBucket")},
        "GatewayPolicy": {"Value": ref("GatewayPolicy"), "Description": "attach it to the gateway's role"},
    }
    parameters: Resource = {}
    if options.is_image_ready:
        resources |= functions(options)
        outputs |= {f"SandboxFn{name}": {"Value": ref(f"Function{name}")} for name in KINDS}
        parameters["ImageTag"] = {"Type": "String", "Description": "the tag of the sandbox image"}
    return template(
        f"Dovecote sandboxes on Lambda ({options.stage})",
        resources,
        **({"Parameters": parameters} if parameters else {}),
        Outputs=outputs,
    )


def file_system(options: StackOptions) -> Resources:
    """Return an encrypted file system whose root directory functions may enter and not list."""
    insecure = {"Bool": {"aws:SecureTransport": "false"}}
    mount = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
    role = {"AWS": attribute("MountRole", "Arn")}
    access = policy(
        {"Effect": "Deny", "Principal": {"AWS": "*"}, "Action": "*", "Condition": insecure},
        {"Effect": "Allow", "Principal": role, "Action": mount},
    )
    files = {"Encrypted": True, "ThroughputMode": "elastic", "FileSystemPolicy": access}
    root = {"OwnerUid": "0", "OwnerGid": "0", "Permissions": "0733"}
    access_point = {
        "FileSystemId": ref("Files"),
        "PosixUser": {"Uid": str(POSIX_ID), "Gid": str(POSIX_ID)},
        "RootDirectory": {"Path": f"/{options.stage}", "CreationInfo": root},
    }
    resources = {
        "Files": resource("EFS::FileSystem", files, keep=False),
        "AccessPoint": resource("EFS::AccessPoint", access_point),
    }
    for zone in "AB":
        target = {
            "FileSystemId": ref("Files"),
            "SubnetId": ref(f"Nonet{zone}"),
            "SecurityGroups": [ref("FilesGroup")],
        }
        resources[f"FilesTarget{zone}"] = resource("EFS::MountTarget", target)
    return resources


def buckets(options: StackOptions) -> Resources:
    """Return the bucket of sandboxes and the bucket of workspaces, neither of them public."""
    expire = [
        {"Id": "runs", "Status": "Enabled", "Prefix": f"{PREFIX}runs/", "ExpirationInDays": RESULT_DAYS},
        {
            "Id": "uploads",
            "Status": "Enabled",
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": RESULT_DAYS},
        },
    ]
    resources = {"SandboxBucket": _bucket({"LifecycleConfiguration": {"Rules": expire}}, keep=False)}
    versions = {"VersioningConfiguration": {"Status": "Enabled"}}
    resources["WorkspaceBucket"] = _bucket(versions, keep=options.keeps_data)
    for name, prefix in (("SandboxBucket", PREFIX), ("WorkspaceBucket", WORKSPACE_PREFIX)):
        resources[f"{name}Policy"] = _bucket_policy(name, prefix)
    return resources


def _bucket(properties: Resource, *, keep: bool) -> Resource:
    blocked = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
    encryption = {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    closed = {
        "PublicAccessBlockConfiguration": dict.fromkeys(blocked, True),
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "BucketEncryption": {"ServerSideEncryptionConfiguration": [encryption]},
    }
    return resource("S3::Bucket", closed | properties, keep=keep)


def _bucket_policy(name: str, prefix: str) -> Resource:
    """Return a policy that denies requests without TLS, and objects outside the prefix."""
    whole = [attribute(name, "Arn"), sub("${" + name + ".Arn}/*")]
    insecure = {"Bool": {"aws:SecureTransport": "false"}}
    objects = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    outside = sub("${" + name + ".Arn}/" + prefix + "*")
    access = policy(
        {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": whole, "Condition": insecure},
        {"Effect": "Deny", "Principal": "*", "Action": objects, "NotResource": outside},
    )
    return resource("S3::BucketPolicy", {"Bucket": ref(name), "PolicyDocument": access})


def roles(options: StackOptions) -> Resources:
    """Return the functions' roles, which give their code nothing, and the policy of the gateway."""
    run = {
        "Effect": "Allow",
        "Action": "lambda:InvokeFunction",
        "Resource": [_function_arn(options, kind) for kind in KINDS.values()],
    }
    objects = {
        "Effect": "Allow",
        "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
        "Resource": [
            sub("${SandboxBucket.Arn}/" + PREFIX + "*"),
            sub("${WorkspaceBucket.Arn}/" + WORKSPACE_PREFIX + "*"),
        ],
    }
    listing = {
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": [attribute("SandboxBucket", "Arn"), attribute("WorkspaceBucket", "Arn")],
        "Condition": {"StringLike": {"s3:prefix": [f"{PREFIX}*", f"{WORKSPACE_PREFIX}*"]}},
    }
    gateway = {"PolicyDocument": policy(run, objects, listing)}
    return {
        "MountRole": _function_role(options, ("mount-net", "mount-nonet")),
        "NomountRole": _function_role(options, ("nomount-net", "nomount-nonet")),
        "GatewayPolicy": resource("IAM::ManagedPolicy", gateway),
    }


def _function_role(options: StackOptions, kinds: tuple[str, ...]) -> Resource:
    """Return a role with what Lambda itself needs in a VPC; code in the function is denied the same."""
    lambda_ = {"Service": "lambda.amazonaws.com"}
    trust = {"Effect": "Allow", "Principal": lambda_, "Action": "sts:AssumeRole"}
    from_code = {"ArnEquals": {"lambda:SourceFunctionArn": [_function_arn(options, kind) for kind in kinds]}}
    deny = {
        "Effect": "Deny",
        "NotAction": ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"],
        "Resource": "*",
        "Condition": from_code,
    }
    managed = "arn:${AWS::Partition}:iam::aws:policy/service-role/AWSLambdaVPCAccessExecutionRole"
    properties = {
        "AssumeRolePolicyDocument": policy(trust),
        "ManagedPolicyArns": [sub(managed)],
        "Policies": [{"PolicyName": "nothing-for-commands", "PolicyDocument": policy(deny)}],
    }
    return resource("IAM::Role", properties)


def functions(options: StackOptions) -> Resources:
    """Return the four functions and their logs; none has a URL."""
    resources: Resources = {}
    image = (
        "${AWS::AccountId}.dkr.ecr.${AWS::Region}.${AWS::URLSuffix}/" + options.repository + ":${ImageTag}"
    )
    for name, kind in KINDS.items():
        subnets = "Nonet" if kind.endswith("nonet") else "Net"
        groups = [ref(f"{subnets}Group")]
        function = {
            "FunctionName": _function_name(options, kind),
            "PackageType": "Image",
            "Code": {"ImageUri": sub(image)},
            "Architectures": ["arm64"],
            "MemorySize": MEMORY_MB,
            "Timeout": TIMEOUT_SECONDS,
            "EphemeralStorage": {"Size": TEMPORARY_MB},
            "TenancyConfig": {"TenantIsolationMode": "PER_TENANT"},
            "LoggingConfig": {"LogGroup": ref(f"Logs{name}")},
            "VpcConfig": {
                "SubnetIds": [ref(f"{subnets}A"), ref(f"{subnets}B")],
                "SecurityGroupIds": groups,
            },
        }
        mounts = not kind.startswith("nomount")
        role = "MountRole" if mounts else "NomountRole"
        if mounts:
            files = {"Arn": attribute("AccessPoint", "Arn"), "LocalMountPath": "/mnt/files"}
            function["FileSystemConfigs"] = [files]
        after = ("FilesTargetA", "FilesTargetB") if mounts else ()
        function["Role"] = attribute(role, "Arn")
        resources[f"Logs{name}"] = resource("Logs::LogGroup", {"RetentionInDays": LOG_DAYS}, keep=False)
        resources[f"Function{name}"] = resource("Lambda::Function", function, after=after)
    return resources


def _function_name(options: StackOptions, kind: str) -> str:
    return f"dovecote-sandbox-{options.stage}-{kind}"


def _function_arn(options: StackOptions, kind: str) -> Resource:
    name = _function_name(options, kind)
    return sub("arn:${AWS::Partition}:lambda:${AWS::Region}:${AWS::AccountId}:function:" + name)


def main() -> int:
    """Print the template that the argument names."""
    templates = {"registry": registry, "sandboxes": sandboxes}
    if len(sys.argv) != 2 or sys.argv[1] not in templates:  # noqa: PLR2004 - the program and one argument
        sys.stderr.write("usage: stack.py registry|sandboxes\n")
        return 2
    try:
        options = read_options(os.environ)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    json.dump(templates[sys.argv[1]](options), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
