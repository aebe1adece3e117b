"""A git host and its REST API at port 443 of loopback addresses, under names that a gateway resolves.

A gateway sees a hosts file of its own in a mount namespace, and a certificate authority by `SSL_CERT_FILE`.
Both servers need a login, so that only requests with a credential work.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from egress.proxy.certificate_authority import CertificateAuthority
from git_server import GitServer, is_git_server_possible
from pull_request_api import PullRequestApi

GIT_HOST, API_HOST = "git.code.example", "api.code.example"
USERNAME = "x-access-token"
_HTTPS = 443


@dataclass(kw_only=True)
class CodeHosts:
    """The servers, their secrets, and what a gateway needs to reach them."""

    directory: Path
    network: str
    password: str
    git: GitServer
    api: PullRequestApi

    @property
    def cidr(self) -> str:
        """The network that the operator lets sandboxes list, and that their record lists."""
        return f"{self.network}.0/24"

    @property
    def secrets(self) -> tuple[str, str]:
        """The texts that may be nowhere in a sandbox."""
        return (self.password, self.api.token)

    @property
    def env(self) -> Mapping[str, str]:
        """The environment of a gateway that trusts the servers and may reach them."""
        return {
            "SSL_CERT_FILE": str(self.directory / "authority.pem"),
            "DOVECOTE_SANDBOX__ALLOW__PRIVATE_NETWORKS": self.cidr,
        }

    @property
    def wrapper(self) -> Sequence[str]:
        """The words before a program that is to see the names."""
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return ("unshare", "--mount", "sh", "-c", script, str(self.directory / "hosts"))

    def credentials(self, agent: str) -> list[dict[str, Any]]:
        """Return the bodies of the credentials for both hosts."""
        basic = {"username": USERNAME, "password": self.password}
        return [
            {"name": "git", "host": GIT_HOST, "kind": "basic", "secret": basic, "agents": [agent]},
            {"name": "api", "host": API_HOST, "kind": "header", "secret": self.api.token, "agents": [agent]},
        ]


@cache
def why_impossible() -> str:
    """Return why these hosts cannot run here; empty where they can."""
    if not is_git_server_possible():
        return "git http-backend is not installed"
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "only root may listen at port 443 and give a gateway a hosts file of its own"
    trial = ["unshare", "--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    return done.stderr.strip()


@asynccontextmanager
async def code_hosts(directory: Path) -> AsyncIterator[CodeHosts]:
    """Run the two servers; skips, with the reason, where they cannot run."""
    if why_impossible():
        pytest.skip(why_impossible())
    (directory / "git").mkdir(parents=True)
    git, authority = GitServer(root=directory / "git"), CertificateAuthority.create()
    password = f"canary-{secrets.token_hex(16)}"
    git.require_basic(USERNAME, password)
    api = PullRequestApi(server=git, token=f"canary-{secrets.token_hex(16)}")
    async with AsyncExitStack() as stack:
        network, handlers = _free_network(stack), {GIT_HOST: git.handle, API_HOST: api.handle}
        for listener, (name, handler) in zip(network.listeners, handlers.items(), strict=True):
            runner = web.ServerRunner(web.Server(handler))
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.SockSite(runner, listener, ssl_context=authority.context_for(name)).start()
        names = [f"{network.prefix}.{number} {name}" for number, name in enumerate(handlers, 1)]
        (directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        (directory / "authority.pem").write_text(authority.certificate_pem())
        yield CodeHosts(directory=directory, network=network.prefix, password=password, git=git, api=api)


@dataclass(frozen=True, slots=True)
class _LoopbackNetwork:
    prefix: str
    listeners: Sequence[socket.socket]


def _free_network(stack: AsyncExitStack) -> _LoopbackNetwork:
    """Return a network of loopback whose first two addresses are free, with listeners at port 443."""
    while True:
        prefix = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
        try:
            found = [socket.create_server((f"{prefix}.{number}", _HTTPS)) for number in (1, 2)]
        except OSError:
            continue
        for one in found:
            one.setblocking(False)
            stack.callback(one.close)
        return _LoopbackNetwork(prefix, found)
