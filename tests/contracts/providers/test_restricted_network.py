"""A restricted network: real programs in a real sandbox reach what the record lists, and no more."""

from __future__ import annotations

import io
import shutil
import socket
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from docker_rig import engine_rig
from egress.addresses import parse_networks
from git_server import GitServer, is_git_server_possible
from public_hosts import OTHER, PUBLIC, PublicHosts
from sandbox.errors import ProviderRefused, SandboxOutdated
from sandbox.host.isolation import bubblewrap
from sandbox.model import BackgroundJob, ExecRequest, ExecResult, Network
from sandbox.port import Sandbox
from sandbox.testing.rig import TOKEN, ProviderRig
from sandbox.testing.waiting import wait_for_job, wait_for_output
from sandbox_rigs import VARIANTS, variants_of

NAME = "files.example.org"

pytestmark = [
    pytest.mark.skipif(
        bubblewrap.probe(bubblewrap.find()) is not None, reason="no sandbox can be created on this machine"
    ),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


@pytest.fixture
def hosts(tmp_path: Path) -> PublicHosts:
    """Return an internet without hosts."""
    return PublicHosts(directory=tmp_path)


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return the host provider with control groups, unless a test names another variant or provider."""
    variant = getattr(request, "param", "control_groups")
    if variant == "kubernetes":
        return next(iter(variants_of("kubernetes").values()))(tmp_path)
    return engine_rig("engine", tmp_path) if variant == "docker" else VARIANTS["host"][variant](tmp_path)


@asynccontextmanager
async def opened(
    rig: ProviderRig,
    hosts: PublicHosts,
    *domains: str,
    cidrs: tuple[str, ...] = (),
    memory_mb: int = 256,
    **options: Any,
) -> AsyncIterator[Sandbox]:
    """Open a sandbox that may reach these domains and networks of the internet."""
    async with hosts.sockets(**options) as rig.egress, rig.open() as provider:
        sandbox = await provider.create(
            rig.spec(
                network=Network.RESTRICTED,
                allow_domains=domains,
                allow_cidrs=cidrs,
                account="acc_1",
                memory_mb=memory_mb,
            )
        )
        yield sandbox
        await provider.destroy(sandbox.id)


async def run(sandbox: Sandbox, script: str) -> ExecResult:
    """Run a script with a generous time-out."""
    return await sandbox.run(ExecRequest(script=script, timeout=60))


async def greet(request: web.BaseRequest) -> web.Response:
    """Answer with what was asked for."""
    return web.Response(text=f"{request.method} {request.headers['Host']} {request.rel_url}\n")


@pytest.mark.parametrize("rig", ["control_groups", "rlimits", "docker", "kubernetes"], indirect=True)
async def test_a_listed_host_is_reached_by_curl(rig: ProviderRig, hosts: PublicHosts) -> None:
    """Plain HTTP and HTTPS reach a listed host, by a wildcard too; so does a job, with the same variables."""
    hosts.add(NAME)
    async with (
        hosts.serve(greet),
        hosts.serve(greet, port=443, tls_name=NAME),
        opened(rig, hosts, "*.example.org") as sandbox,
    ):
        script = f"curl -sS http://{NAME}/a?b=c https://{NAME}/d"
        assert (await run(sandbox, script)).stdout == (f"GET {NAME} /a?b=c\nGET {NAME} /d\n".encode())
        await sandbox.spawn(BackgroundJob(id="job_1", script=script, token=TOKEN))
        assert (await wait_for_job(sandbox, "job_1")).output.count(b"GET") == 2
    assert {address for address, _ in hosts.connected} == {PUBLIC}


@pytest.mark.parametrize("rig", ["kubernetes"], indirect=True)
async def test_a_pod_connects_to_its_listed_networks_by_itself(rig: ProviderRig, hosts: PublicHosts) -> None:
    """The network policy opens networks of `allowCidrs`, so programs do not ask the proxy for them."""
    hosts.add(NAME)
    async with opened(rig, hosts, NAME, cidrs=("192.0.2.0/24",)) as sandbox:
        reported = await run(sandbox, "curl -sS -m 1 http://192.0.2.1/ || echo $no_proxy $NO_PROXY")
    assert reported.stdout.count(b"192.0.2.0/24") == 2
    assert hosts.connected == []


@pytest.mark.parametrize("rig", ["kubernetes"], indirect=True)
async def test_the_way_out_of_a_pod_is_made_again(rig: ProviderRig, hosts: PublicHosts) -> None:
    """A killed program is started again; so is that of a pod that was suspended, and of a new gateway."""
    hosts.add(NAME)
    ask = f"until curl -sS http://{NAME}/a 2>errors; do sleep 0.1; done"
    kill = "for d in /proc/[0-9]*; do grep -qa egress_tunne[l] $d/cmdline && kill -9 ${d#/proc/}; done; true"
    spec = rig.spec(
        network=Network.RESTRICTED, allow_domains=(NAME,), account="acc_1", persistent=True, label=rig.label
    )
    async with hosts.serve(greet), hosts.sockets() as rig.egress:
        async with rig.open() as provider:
            sandbox = await provider.create(spec)
            assert b"GET" in (await run(sandbox, ask)).stdout
            assert (await run(sandbox, kill)).ok
            assert b"GET" in (await run(sandbox, ask)).stdout
            await sandbox.suspend()
            assert b"GET" in (await run(sandbox, ask)).stdout
        async with rig.open() as provider:
            again = await provider.connect(sandbox.id, spec)
            assert b"GET" in (await run(again, ask)).stdout
            await provider.destroy(again.id)


async def test_a_job_of_git_and_pip_works(rig: ProviderRig, hosts: PublicHosts, tmp_path: Path) -> None:
    """Git clones and pip installs through the proxy as they are, without options."""
    if not is_git_server_possible():
        pytest.skip("git http-backend is not installed")
    (tmp_path / "git").mkdir()
    server = GitServer(root=tmp_path / "git")
    server.create("tool.git", b"content\n")
    hosts.add("git.example.org")
    hosts.add("pypi.example.org", OTHER)
    async with (
        hosts.serve(server.handle, port=443, tls_name="git.example.org"),
        hosts.serve(package_index, address=OTHER, port=443, tls_name="pypi.example.org"),
        opened(rig, hosts, "git.example.org", "pypi.example.org", memory_mb=512) as sandbox,
    ):
        cloned = await run(sandbox, "git clone -q https://git.example.org/tool.git && cat tool/file")
        assert cloned.stdout == b"content\n", cloned.stderr
        installed = await run(
            sandbox,
            "python3 -m pip install -q --no-input --disable-pip-version-check --target here"
            " --index-url https://pypi.example.org/simple/ hello-wheel; python3 -c"
            " 'import sys; sys.path.insert(0, \"here\"); import hello_wheel; print(hello_wheel.WORD)'",
        )
        if b"No module named pip" in installed.stderr:
            pytest.skip("the sandbox has no pip")
        assert installed.stdout == b"hello\n", installed.stderr


async def package_index(request: web.BaseRequest) -> web.Response:
    """Serve a simple index with one wheel."""
    name = "hello_wheel-1.0-py3-none-any.whl"
    if request.path == "/simple/hello-wheel/":
        return web.Response(text=f'<a href="/{name}">{name}</a>', content_type="text/html")
    if request.path != f"/{name}":
        return web.Response(status=404)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as wheel:
        wheel.writestr("hello_wheel.py", "WORD = 'hello'\n")
        info = "hello_wheel-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello-wheel\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return web.Response(body=content.getvalue(), content_type="application/octet-stream")


REFUSALS: dict[str, tuple[str, str]] = {
    "another name": ("http://other.example.net/", "add 'other.example.net' to network.allowDomains"),
    "another name by TLS": ("https://other.example.net/", "add 'other.example.net' to network.allowDomains"),
    "the parent of a wildcard": ("http://example.org/", "add 'example.org' to network.allowDomains"),
    "a name behind a listed one": ("http://files.example.org.evil.net/", "files.example.org.evil.net"),
    "another port": (f"http://{NAME}:8080/", f"may not reach port 8080 of {NAME}"),
    "another port by TLS": (f"https://{NAME}:22/", f"may not reach port 22 of {NAME}"),
    "a public address": (f"http://{OTHER}/", f"may not reach {OTHER} at port 80"),
    "a public address by TLS": (f"https://{OTHER}/", f"may not reach {OTHER} at port 443"),
    "the metadata address": ("http://169.254.169.254/latest/", "the address is private, local or reserved"),
    "loopback": ("http://127.0.0.2/", "the address is private, local or reserved"),
    "loopback of version 6": ("http://[::1]/", "the address is private, local or reserved"),
    "a mapped address": ("http://[::ffff:10.0.0.1]/", "the address is private, local or reserved"),
    "a private address": ("https://10.0.0.1/", "the address is private, local or reserved"),
    "a decimal address": ("http://2130706433/", "the address is private, local or reserved"),
    "a redirect to a private address": (f"http://{NAME}/away", "the address is private, local or reserved"),
    "a name with a private address": ("http://inner.example.org/", "inner.example.org has that address"),
    "the same by TLS": ("https://inner.example.org/", "inner.example.org has that address"),
}


async def redirect(request: web.BaseRequest) -> web.Response:
    """Send everybody to the metadata address."""
    return web.Response(status=302, headers={"Location": "http://169.254.169.254/latest/"})


async def test_everything_else_is_refused_in_words(rig: ProviderRig, hosts: PublicHosts) -> None:
    """Each refusal is a 403 or 400 whose sentence curl shows, and nothing was connected to."""
    hosts.add(NAME)
    hosts.add("inner.example.org", "10.0.0.1")
    hosts.add("other.example.net")
    commands = "; ".join(
        f"echo '## {what} ##'; curl -sSvL --noproxy '' '{url}' 2>&1" for what, (url, _) in REFUSALS.items()
    )
    async with hosts.serve(redirect), opened(rig, hosts, "*.example.org") as sandbox:
        reported = (await run(sandbox, commands)).stdout.decode()
    for what, (_, sentence) in REFUSALS.items():
        answer = reported.partition(f"## {what} ##")[2].partition("\n## ")[0]
        assert sentence in answer, (what, answer)
        assert " 403 " in answer or " 400 " in answer, (what, answer)
    assert hosts.connected == [(PUBLIC, 80)]
    assert set(hosts.looked_up) == {NAME, "inner.example.org"}


@pytest.mark.parametrize("rig", ["control_groups", "docker"], indirect=True)
async def test_there_is_no_other_way_out(rig: ProviderRig, hosts: PublicHosts) -> None:
    """Direct connections fail, and the only socket beside the callback is the proxy's."""
    hosts.add(NAME)
    with socket.create_server(("0.0.0.0", 0)) as service:
        port = service.getsockname()[1]
        async with hosts.serve(greet), opened(rig, hosts, NAME) as sandbox:
            tries = "; ".join(
                f"timeout 2 bash -c ': </dev/tcp/{target}' 2>/dev/null && echo reached {target}"
                for target in (f"127.0.0.1/{port}", "169.254.169.254/80", "1.1.1.1/443", f"{PUBLIC}/80")
            )
            script = f"curl -sS --noproxy '*' http://{NAME}/; {tries}; ls /run/dovecote"
            result = await run(sandbox, script)
    assert b"reached" not in result.stdout
    assert b"Could not resolve host" in result.stderr
    assert set(result.stdout.split()) <= {b"callback.sock", b"egress.sock", b"ca-bundle.pem"}


async def test_a_name_is_resolved_once_for_a_connection(rig: ProviderRig, hosts: PublicHosts) -> None:
    """A name that is private at the second look-up is refused then, and never connected to."""
    hosts.add(NAME, PUBLIC, "127.0.0.1", "169.254.169.254")
    async with (
        hosts.serve(greet, port=443, tls_name=NAME),
        opened(rig, hosts, NAME) as sandbox,
    ):
        once = f"curl -sSv https://{NAME}/ 2>&1"
        reported = (await run(sandbox, f"{once}; echo; echo SECOND; {once}; {once}")).stdout
    first, _, second = reported.partition(b"SECOND")
    assert f"GET {NAME} /".encode() in first
    assert second.count(b"the address is private, local or reserved") == 2
    assert hosts.connected == [(PUBLIC, 443)]
    assert hosts.looked_up == [NAME] * 3


IN_A_TUNNEL = """
import socket, ssl, sys
def tunnel():
    found = socket.create_connection(("127.0.0.1", 3128), timeout=30)
    found.sendall(b"CONNECT files.example.org:443 HTTP/1.1\\r\\n\\r\\n")
    assert b" 200 " in found.recv(4096)
    return found
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
for name in ("files.example.org", "FILES.example.org", "other.example.net", None):
    try:
        with context.wrap_socket(tunnel(), server_hostname=name) as found:
            found.sendall(b"GET / HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n")
            print(name, found.recv(15))
    except (ssl.SSLError, OSError) as error:
        print(name, type(error).__name__, getattr(error, "reason", ""))
for first in (b"GET / HTTP/1.0\\r\\n\\r\\n", b"SSH-2.0-x\\r\\n", b"\\x16\\x03\\x01\\xff\\xff" + b"a" * 70000):
    found = tunnel()
    try:
        found.sendall(first)
        print(found.recv(4096))
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("rig", ["control_groups", "docker"], indirect=True)
async def test_a_tunnel_carries_tls_for_its_host_alone(rig: ProviderRig, hosts: PublicHosts) -> None:
    """Another server name, none, and other protocols are refused before a byte reaches the host."""
    hosts.add(NAME)
    seen: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append(request.path)
        return web.Response(text="in")

    async with hosts.serve(answer, port=443, tls_name=NAME), opened(rig, hosts, NAME) as sandbox:
        result = await run(sandbox, f"python3 -c '{IN_A_TUNNEL}'")
    alert = "b'\\x15\\x03\\x03\\x00\\x02\\x02p'"
    assert result.stdout.decode().splitlines()[:4] == [
        f"{NAME} b'HTTP/1.0 200 OK'",
        "FILES.example.org b'HTTP/1.0 200 OK'",
        "other.example.net SSLError TLSV1_UNRECOGNIZED_NAME",
        "None SSLError TLSV1_UNRECOGNIZED_NAME",
    ], result.stderr
    # A client that still sends when the proxy closes may lose the alert with the connection.
    assert set(result.stdout.decode().splitlines()[4:]) <= {alert, "b''", "ConnectionResetError"}
    assert seen == ["/", "/"]


async def test_networks_are_reached_by_address(rig: ProviderRig, hosts: PublicHosts) -> None:
    """A listed public network is reached at any port; a private one also needs the operator's list."""
    networks = ("93.184.0.0/16", "10.1.0.0/16", "10.2.0.0/16")
    async with (
        hosts.serve(greet, port=8080),
        hosts.serve(greet, address="10.1.2.3", port=8081),
        opened(rig, hosts, cidrs=networks, private=parse_networks(["10.1.0.0/16"])) as sandbox,
    ):
        script = (
            f"curl -sS http://{PUBLIC}:8080/; curl -sS http://10.1.2.3:8081/; "
            f"curl -sSp http://{PUBLIC}:8080/tunnel; curl -sS http://10.2.2.3/ http://{OTHER}/"
        )
        reported = (await run(sandbox, script)).stdout.decode().splitlines()
    assert reported[:3] == [
        f"GET {PUBLIC}:8080 /",
        "GET 10.1.2.3:8081 /",
        f"GET {PUBLIC}:8080 /tunnel",
    ]
    assert "sandbox.allow.private_networks" in reported[3]
    assert "network.allowCidrs" in reported[4]
    assert set(hosts.connected) == {(PUBLIC, 8080), ("10.1.2.3", 8081)}


async def test_the_lists_of_an_open_sandbox_can_be_changed(rig: ProviderRig, hosts: PublicHosts) -> None:
    """A changed record holds from the next connection on, and with another mode there is no proxy."""
    hosts.add(NAME)
    async with hosts.serve(greet), opened(rig, hosts) as sandbox, rig.open() as provider:
        ask = f"curl -sS http://{NAME}/"
        assert b"allowDomains" in (await run(sandbox, ask)).stdout
        listed = rig.spec(network=Network.RESTRICTED, allow_domains=(NAME,), account="acc_1")
        assert b"GET" in (await run(await provider.connect(sandbox.id, listed), ask)).stdout
        closed = await provider.connect(sandbox.id, rig.spec())
        assert (await run(closed, f"env | grep -i proxy; curl -sS {NAME}")).stdout == b""
        assert b"GET" not in (await run(sandbox, ask)).stdout


@pytest.mark.parametrize("rig", ["control_groups", "docker", "kubernetes"], indirect=True)
async def test_a_restricted_job_keeps_its_network_when_the_record_allows_everything(
    rig: ProviderRig, hosts: PublicHosts
) -> None:
    """The proxy is its only way out: it is there after the change, and after a restart of the gateway."""
    hosts.add(NAME)
    hosts.add("other.example.org")
    asks = "; ".join(
        f"while ! test -e {step}; do sleep 0.05; done; "
        f"curl -sS http://{NAME}/{step} http://other.example.org/{step}"
        for step in ("changed", "restarted")
    )
    opened_spec = rig.spec(network=Network.ALLOW_ALL, account="acc_1", memory_mb=256)
    async with hosts.serve(greet):
        async with hosts.sockets() as rig.egress, rig.open() as provider:
            spec = replace(opened_spec, network=Network.RESTRICTED, allow_domains=(NAME,))
            sandbox = await provider.create(spec)
            await sandbox.spawn(BackgroundJob(id="job_1", script=asks, token=TOKEN))
            with suppress(SandboxOutdated, ProviderRefused):
                await provider.connect(sandbox.id, opened_spec)
            found = await provider.connect(sandbox.id, replace(opened_spec, as_created=True))
            await found.write("changed", b"")
            await wait_for_output(found, "job_1", b"GET other.example.org /changed")
        async with hosts.sockets() as rig.egress, rig.open() as provider:
            found = await provider.connect(sandbox.id, replace(opened_spec, as_created=True))
            await found.write("restarted", b"")
            report = await wait_for_job(found, "job_1")
            await provider.destroy(sandbox.id)
    assert report.output.count(b"GET") == 4


@pytest.mark.parametrize("rig", ["docker"], indirect=True)
async def test_the_forwarder_of_a_container_is_started_again(rig: ProviderRig, hosts: PublicHosts) -> None:
    """Commands may kill the program that carries connections; the next command has a network again."""
    hosts.add(NAME)
    kill = "kill -9 $(grep -la forward_egress.py /proc/[0-9]*/cmdline | cut -d/ -f3 | grep -vx 1)"
    ask = f"curl -sS http://{NAME}/"
    async with hosts.serve(greet), opened(rig, hosts, NAME) as sandbox:
        assert b"GET" in (await run(sandbox, ask)).stdout
        assert not (await run(sandbox, f"{kill}; {ask}")).ok
        for _ in range(20):
            if b"GET" in (answer := await run(sandbox, ask)).stdout:
                break
        assert b"GET" in answer.stdout
