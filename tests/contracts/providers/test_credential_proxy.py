"""Credentials in a real sandbox: git and curl use them, and nothing in the sandbox can read them."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from credential_sandboxes import PASSWORD, CredentialAccount, echo_headers, run, sandboxes
from delivery.database.engine import Database
from egress.addresses import parse_networks
from egress.policy import EgressPolicy
from gateway.accounts import api_keys
from gateway.accounts.vault import Vault
from gateway.environments.credential_headers import REFUSED_SECONDS
from gateway.records.records import Records
from gateway.store.accounts import records as store
from gateway.tools.git.git_tools import GIT_TOOLS
from git_server import GitServer, is_git_server_possible
from migrated import migrated_sqlite
from public_hosts import OTHER, PUBLIC, PublicHosts
from sandbox.host.isolation import bubblewrap
from sandbox.model import BackgroundJob
from sandbox.testing.rig import TOKEN
from sandbox.testing.waiting import wait_for_job, wait_for_output
from tool_contexts import asked_context

GIT, API = "git.example.org", "api.example.org"

pytestmark = [
    pytest.mark.skipif(
        bubblewrap.probe(bubblewrap.find()) is not None, reason="no sandbox can be created on this machine"
    ),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


@pytest.fixture
def hosts(tmp_path: Path) -> PublicHosts:
    """Return an internet with two names."""
    found = PublicHosts(directory=tmp_path)
    found.add(GIT)
    found.add(API, OTHER)
    return found


@pytest.fixture
async def account(tmp_path: Path) -> AsyncIterator[CredentialAccount]:
    """Return an account in a database of its own."""
    await migrated_sqlite(tmp_path / "gateway.db")
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'gateway.db'}")
    vault, policy = Vault(["v" * 40]), EgressPolicy(allow=parse_networks(["127.0.0.0/8"]))
    made = CredentialAccount(database, Records(vault, policy))
    await made.create()
    yield made
    await database.close()


ENCODED = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
SEARCH = f"""
pattern='canary-[p]assword|{ENCODED[:20]}[{ENCODED[20]}]'
env | grep -cE "$pattern"
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -acE "$pattern"
grep -rlE "$pattern" . ~ /run /etc /opt 2>/dev/null | wc -l
"""
SEARCH_TMP = f"grep -rlE 'canary-[p]assword|{ENCODED[:20]}[{ENCODED[20]}]' /tmp 2>/dev/null | wc -l"
"""Not in the pods of these tests, which have the files of this machine: other tests write to its /tmp."""


@pytest.mark.parametrize("provider", ["host", "docker", "kubernetes"])
async def test_git_clones_and_pushes_with_a_password(
    tmp_path: Path, hosts: PublicHosts, account: CredentialAccount, provider: str
) -> None:
    """Git works with a private repository as it is; the password is nowhere in the sandbox."""
    if not is_git_server_possible():
        pytest.skip("git http-backend is not installed")
    (tmp_path / "git").mkdir()
    server = GitServer(root=tmp_path / "git")
    server.create("tool.git", b"content\n")
    server.require_basic("ada", PASSWORD)
    credential = await account.add("github", GIT, "basic", {"username": "ada", "password": PASSWORD})
    async with (
        hosts.serve(server.handle, port=443, tls_name=GIT),
        sandboxes(tmp_path, hosts, account, provider) as opened,
    ):
        sandbox = await opened.create()
        script = (
            f"git clone -q https://{GIT}/tool.git && cd tool && head -c 3000000 /dev/urandom > big &&"
            " git add big && git -c user.name=Ada -c user.email=ada@example.org commit -qm Second &&"
            " git push -q origin main && git log --format=%s; cat .git/config;"
            " GIT_TRACE_CURL=1 git fetch 2>&1"
        )
        done = await run(sandbox, script)
        assert done.stdout.startswith(b"Second\nFirst\n"), done.stderr
        assert server.log("tool.git") == ["Second", "First"]
        assert PASSWORD.encode() not in done.stdout + done.stderr
        assert ENCODED.encode() not in done.stdout + done.stderr
        assert (await run(sandbox, SEARCH)).stdout.split() == [b"0", b"0", b"0"]
        if provider != "kubernetes":
            assert (await run(sandbox, SEARCH_TMP)).stdout.split() == [b"0"]
        ask = f"git ls-remote https://{GIT}/tool.git"
        await sandbox.spawn(BackgroundJob(id="job_1", script=ask, token=TOKEN))
        assert b"refs/heads/main" in (await wait_for_job(sandbox, "job_1")).output
        await account.delete(credential)
        refused = await run(sandbox, ask)
        assert not refused.ok
        assert b"403" in refused.stderr
    assert await account.audit() == [f"{account.agents['coder']} use credential GET {credential} {GIT}"]


async def test_the_git_tools_clone_commit_and_push(
    tmp_path: Path, hosts: PublicHosts, account: CredentialAccount
) -> None:
    """The proxy logs in, the commit has the asker's name, and the password is nowhere in the sandbox."""
    if not is_git_server_possible():
        pytest.skip("git http-backend is not installed")
    (tmp_path / "git").mkdir()
    server = GitServer(root=tmp_path / "git")
    server.create("tool.git", b"content\n")
    server.require_basic("ada", PASSWORD)
    await account.add("github", GIT, "basic", {"username": "ada", "password": PASSWORD})
    async with account.database.begin() as connection:
        key, _secret = await api_keys.create_key(connection, account.id, name="Ada of the console")
    async with (
        hosts.serve(server.handle, port=443, tls_name=GIT),
        sandboxes(tmp_path, hosts, account) as opened,
    ):
        sandbox = await opened.create()
        context = asked_context(opened.rig, sandbox, account.database, account=account.id, asker=key.id)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("git_clone", {"url": f"https://{GIT}/tool.git", "directory": "-my tool"}),
            ("git_commit", {"directory": "-my tool", "message": "Second", "branch": "fix/it's"}),
            ("git_push", {"directory": "-my tool", "branch": "fix/it's"}),
        ]
        for name, args in calls:
            await sandbox.write("-my tool/new", b"new") if name == "git_commit" else None
            done = await GIT_TOOLS[name].run(context, args, "key")
            assert done.ok, done.content
            assert PASSWORD not in done.content
        assert server.authors("tool.git", "fix/it's") == ["Ada of the console", "Ada"]
        assert (await run(sandbox, SEARCH)).stdout.split() == [b"0", b"0", b"0"]
        assert (await run(sandbox, SEARCH_TMP)).stdout.split() == [b"0"]


@pytest.mark.parametrize("provider", ["host", "docker", "kubernetes"])
async def test_a_credential_is_for_its_agents_host_and_tls(
    tmp_path: Path, hosts: PublicHosts, account: CredentialAccount, provider: str
) -> None:
    """Other agents, shared sandboxes, other hosts and plain HTTP go without it."""
    await account.add("key", API, "header", PASSWORD)
    await account.add("shared", GIT, "header", {"name": "X-Key", "value": "everybody"}, "*")
    async with (
        hosts.serve(echo_headers, address=OTHER, port=443, tls_name=API),
        hosts.serve(echo_headers, address=OTHER),
        hosts.serve(echo_headers, port=443, tls_name=GIT),
        sandboxes(tmp_path, hosts, account, provider) as opened,
    ):
        reported = {}
        for agent in ("coder", "reader", ""):
            sandbox = await opened.create(agent, API)
            script = f"curl -sS https://{API}/a%2Fb?c=d -d body; echo; curl -sS https://{GIT}/"
            reported[agent] = [json.loads(line) for line in (await run(sandbox, script)).stdout.splitlines()]
        mine = await run(
            opened.made[0], f"curl -sS http://{API}/; curl -sS -H 'Authorization: Bearer x' https://{API}/"
        )
        trace = await run(opened.made[0], f"curl -sS -X TRACE https://{API}/; curl -sSv https://{API}/ 2>&1")
    assert [one[0]["signed"] for one in reported.values()] == [True, False, False]
    assert [one[1]["key"] for one in reported.values()] == ["everybody"] * 3
    assert reported["coder"][0] | {"kind": "", "key": ""} == {
        "kind": "",
        "signed": True,
        "key": "",
        "path": "/a%2Fb?c=d",
        "body": 4,
        "method": "POST",
    }
    refused, _, replaced = mine.stdout.decode().partition("\n")
    assert f"need https: use https://{API}/" in refused
    assert json.loads(replaced)["signed"] is True
    assert b"another method than TRACE" in trace.stdout
    assert b"Dovecote credential proxy" in trace.stdout
    assert PASSWORD.encode() not in trace.stdout + mine.stdout


async def test_a_refusal_says_why_a_credential_is_not_used(
    tmp_path: Path, hosts: PublicHosts, account: CredentialAccount
) -> None:
    """The remedy is that of the credential, and not a list of hosts without a login."""
    await account.add("key", API, "header", PASSWORD)
    async with (
        hosts.serve(echo_headers, port=443, tls_name=GIT),
        sandboxes(tmp_path, hosts, account) as opened,
    ):
        reported = {}
        for agent in ("coder", "reader", ""):
            sandbox = await opened.create(agent)
            asked = f"curl -sSv https://{API}/ https://{GIT}/ 2>&1; curl -sS http://{API}/"
            reported[agent] = (await run(sandbox, asked)).stdout.decode()
    assert f"need https: use https://{API}/" in reported["coder"]
    assert reported["reader"].count("The credential 'key' for api.example.org is not used") == 2
    assert "Add this agent to `agents`" in reported["reader"]
    assert reported[""].count("several agents share the sandbox") == 2
    assert all("add 'git.example.org' to network.allowDomains" in text for text in reported.values())
    assert not any(PASSWORD in text for text in reported.values())


async def test_the_keep_alive_connection_sees_the_deletion(
    tmp_path: Path, hosts: PublicHosts, account: CredentialAccount
) -> None:
    """On one TLS connection the request after the deletion is refused in words."""
    credential = await account.add("key", API, "header", PASSWORD)
    script = (
        "import http.client, os, ssl, time\n"
        "found = http.client.HTTPSConnection('127.0.0.1', 3128, context=ssl.create_default_context())\n"
        f"found.set_tunnel('{API}', 443)\n"
        "found.request('GET', '/'); print(found.getresponse().read().decode(), flush=True)\n"
        "while not os.path.exists('deleted'): time.sleep(0.05)\n"
        "found.request('GET', '/'); print(found.getresponse().read().decode())\n"
    )
    async with (
        hosts.serve(echo_headers, address=OTHER, port=443, tls_name=API),
        sandboxes(tmp_path, hosts, account) as opened,
    ):
        sandbox = await opened.create()
        await sandbox.write("ask.py", script.encode())
        await sandbox.spawn(BackgroundJob(id="job_1", script="python3 ask.py", token=TOKEN))
        await wait_for_output(sandbox, "job_1", b"\n")
        await account.delete(credential)
        await sandbox.write("deleted", b"")
        output = (await wait_for_job(sandbox, "job_1")).output.decode()
    first, second = output.split("\n", 1)
    assert '"signed": true' in first, output
    assert f"There is no credential for {API} any more" in second


class TokenServer:
    """Answers requests for access tokens of OAuth and of a GitHub App."""

    def __init__(self, key: rsa.RSAPrivateKey | None = None) -> None:
        self.forms: list[Mapping[str, str]] = []
        self.claims: list[Mapping[str, Any]] = []
        self._key = key

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer with a token, and with a new refresh token."""
        if self._key is not None:
            token = request.headers["Authorization"].removeprefix("Bearer ")
            self.claims.append(jwt.decode(token, self._key.public_key(), algorithms=["RS256"]))
            body = {"token": PASSWORD, "expires_at": "2999-01-01T00:00:00Z"}
            return web.json_response(body, status=201)
        form = dict(await request.post())
        self.forms.append({name: str(value) for name, value in form.items()})
        return web.json_response(
            {"access_token": PASSWORD, "expires_in": 3600, "refresh_token": f"next-{len(self.forms)}"}
        )


async def test_an_access_token_is_fetched_once(
    tmp_path: Path, hosts: PublicHosts, account: CredentialAccount
) -> None:
    """A refresh token is exchanged outside the sandbox, once while its token holds; a new one is stored."""
    server = TokenServer()
    async with (
        hosts.serve(server.handle, port=1),
        hosts.serve(echo_headers, address=OTHER, port=443, tls_name=API),
        sandboxes(tmp_path, hosts, account) as opened,
    ):
        url = f"http://127.0.0.1:{hosts.ports[PUBLIC, 1]}/token"
        secret = {"token_url": url, "client_id": "me", "client_secret": "cs", "refresh_token": "first"}
        credential = await account.add("oauth", API, "oauth", secret)
        sandbox = await opened.create()
        reported = await run(sandbox, f"for n in 1 2; do curl -sS https://{API}/; echo; done")
        assert [json.loads(line)["signed"] for line in reported.stdout.splitlines()] == [True, True]
    assert server.forms == [
        {"grant_type": "refresh_token", "client_id": "me", "client_secret": "cs", "refresh_token": "first"}
    ]
    async with account.database.read() as connection:
        record = await store.get_by_id(connection, credential)
    assert record is not None
    assert account.records.with_secrets(record)["secret"]["refresh_token"] == "next-1"
    assert PASSWORD not in repr(record)


async def test_a_token_that_the_host_refuses_is_replaced(
    tmp_path: Path, hosts: PublicHosts, account: CredentialAccount
) -> None:
    """A token that was revoked before its end is fetched again for the request after the refused one."""
    server, now = TokenServer(), [1.8e9]
    account.clock = lambda: now[0]

    async def refuse(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=401)

    async with (
        hosts.serve(server.handle, port=1),
        hosts.serve(refuse, address=OTHER, port=443, tls_name=API),
        sandboxes(tmp_path, hosts, account) as opened,
    ):
        url = f"http://127.0.0.1:{hosts.ports[PUBLIC, 1]}/token"
        secret = {"token_url": url, "client_id": "me", "refresh_token": "first"}
        await account.add("oauth", API, "oauth", secret)
        sandbox = await opened.create()
        for seconds in (0, 0, REFUSED_SECONDS, 0):
            now[0] += seconds
            await run(sandbox, f"curl -sS https://{API}/")
    assert [form["refresh_token"] for form in server.forms] == ["first", "next-1"]


async def test_a_github_app_signs_git_and_api_requests(
    tmp_path: Path, hosts: PublicHosts, account: CredentialAccount
) -> None:
    """A token of the installation is a password for git and a bearer token elsewhere; a failure is named."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    server = TokenServer(key)
    async with (
        hosts.serve(server.handle, port=1),
        hosts.serve(echo_headers, address=OTHER, port=443, tls_name=API),
        sandboxes(tmp_path, hosts, account) as opened,
    ):
        url = f"http://127.0.0.1:{hosts.ports[PUBLIC, 1]}"
        secret = {"app_id": "1", "installation_id": "2", "private_key": pem, "api_url": url}
        await account.add("app", API, "github_app", secret)
        broken = {**secret, "private_key": "no key"}
        await account.add("broken", GIT, "github_app", broken)
        sandbox = await opened.create()
        asked = (
            f"curl -sS https://{API}/repos; echo; curl -sS 'https://{API}/x.git/info/refs?service=y'; echo"
        )
        reported = [json.loads(line) for line in (await run(sandbox, asked)).stdout.splitlines()]
        failed = await run(sandbox, f"curl -sS https://{GIT}/")
    assert [(one["kind"], one["signed"]) for one in reported] == [("Bearer", True), ("Basic", False)]
    assert [one["iss"] for one in server.claims] == ["1"]
    assert b"The credential 'broken' for git.example.org: the private key" in failed.stdout
