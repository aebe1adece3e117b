"""The network of the sandbox functions."""

from __future__ import annotations

from cloudformation import Resource, Resources, attribute, policy, ref, resource, sub

PREFIX = "sandboxes/"
"""The prefix of the gateway's objects: `[sandbox.lambda] prefix`."""

NFS_PORT = 2049
ADDRESSES = "10.83"
"""The first half of the VPC's addresses."""

PRIVATE_RANGES = ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")


def network() -> Resources:
    """Return a VPC: isolated subnets that reach S3 and the file system, and subnets with a NAT gateway."""
    resources: Resources = {
        "Vpc": resource(
            "EC2::VPC",
            {"CidrBlock": f"{ADDRESSES}.0.0/16", "EnableDnsSupport": True, "EnableDnsHostnames": True},
        ),
        "Internet": resource("EC2::InternetGateway", {}),
        "InternetAttachment": resource(
            "EC2::VPCGatewayAttachment", {"VpcId": ref("Vpc"), "InternetGatewayId": ref("Internet")}
        ),
        "NatAddress": resource("EC2::EIP", {"Domain": "vpc"}, after="InternetAttachment"),
        "Nat": resource(
            "EC2::NatGateway",
            {"SubnetId": ref("PublicA"), "AllocationId": attribute("NatAddress", "AllocationId")},
        ),
        "PublicRoute": _route("PublicRoutes", "GatewayId", "Internet", after="InternetAttachment"),
        "NatRoute": _route("NetRoutes", "NatGatewayId", "Nat"),
        "S3Endpoint": _s3_endpoint(),
        "NetAcl": resource("EC2::NetworkAcl", {"VpcId": ref("Vpc")}),
    }
    for kind, base, zones in (("Public", 0, "A"), ("Net", 16, "AB"), ("Nonet", 32, "AB")):
        resources[f"{kind}Routes"] = resource("EC2::RouteTable", {"VpcId": ref("Vpc")})
        for number, zone in enumerate(zones):
            resources |= _subnet(kind, zone, number, f"{ADDRESSES}.{base + number}.0/24")
    return resources | _security_groups() | _acl_entries()


def _subnet(kind: str, zone: str, number: int, cidr: str) -> Resources:
    place = {"Fn::Select": [number, {"Fn::GetAZs": ""}]}
    subnet = {"VpcId": ref("Vpc"), "CidrBlock": cidr, "AvailabilityZone": place}
    association = {"SubnetId": ref(f"{kind}{zone}"), "RouteTableId": ref(f"{kind}Routes")}
    resources = {
        f"{kind}{zone}": resource("EC2::Subnet", subnet),
        f"{kind}{zone}Routes": resource("EC2::SubnetRouteTableAssociation", association),
    }
    if kind == "Net":
        acl = {"SubnetId": ref(f"{kind}{zone}"), "NetworkAclId": ref("NetAcl")}
        resources[f"{kind}{zone}Acl"] = resource("EC2::SubnetNetworkAclAssociation", acl)
    return resources


def _route(table: str, kind: str, target: str, after: str = "") -> Resource:
    route = {"RouteTableId": ref(table), "DestinationCidrBlock": "0.0.0.0/0", kind: ref(target)}
    return resource("EC2::Route", route, after=after)


def _s3_endpoint() -> Resource:
    """Return the way to S3 of functions without a network, which leads to the runs of our bucket alone."""
    statement = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": ["s3:GetObject", "s3:PutObject"],
        "Resource": sub("${SandboxBucket.Arn}/" + PREFIX + "runs/*"),
    }
    endpoint = {
        "VpcId": ref("Vpc"),
        "ServiceName": sub("com.amazonaws.${AWS::Region}.s3"),
        "VpcEndpointType": "Gateway",
        "RouteTableIds": [ref("NonetRoutes")],
        "PolicyDocument": policy(statement),
    }
    return resource("EC2::VPCEndpoint", endpoint)


def _security_groups() -> Resources:
    """Return the groups: functions accept nothing; the file system accepts functions."""
    anywhere = {"IpProtocol": "-1", "CidrIp": "0.0.0.0/0"}
    https = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "CidrIp": "0.0.0.0/0"}
    files = {"IpProtocol": "tcp", "FromPort": NFS_PORT, "ToPort": NFS_PORT, "CidrIp": f"{ADDRESSES}.32.0/23"}
    incoming = [
        {"IpProtocol": "tcp", "FromPort": NFS_PORT, "ToPort": NFS_PORT, "SourceSecurityGroupId": ref(group)}
        for group in ("NetGroup", "NonetGroup")
    ]
    groups: dict[str, tuple[str, Resource]] = {
        "NetGroup": ("functions with a network", {"SecurityGroupEgress": [anywhere]}),
        "NonetGroup": ("functions without a network", {"SecurityGroupEgress": [https, files]}),
        "FilesGroup": ("file system of sandboxes", {"SecurityGroupIngress": incoming}),
    }
    return {
        name: resource("EC2::SecurityGroup", {"GroupDescription": text, "VpcId": ref("Vpc"), **rules})
        for name, (text, rules) in groups.items()
    }


def _acl_entries() -> Resources:
    """Return the rules of subnets with a network: the file system, then no private range, then anything."""
    rules = [
        (f"{ADDRESSES}.32.0/23", "allow"),
        *((one, "deny") for one in PRIVATE_RANGES),
        ("0.0.0.0/0", "allow"),
    ]
    entries = [("Out", number, cidr, action) for number, (cidr, action) in enumerate(rules)]
    entries.append(("In", 0, "0.0.0.0/0", "allow"))
    return {
        f"NetAcl{way}{number}": resource(
            "EC2::NetworkAclEntry",
            {
                "NetworkAclId": ref("NetAcl"),
                "Egress": way == "Out",
                "RuleNumber": 100 + 10 * number,
                "Protocol": -1,
                "RuleAction": action,
                "CidrBlock": cidr,
            },
        )
        for way, number, cidr, action in entries
    }
