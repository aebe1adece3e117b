"""deploy/proxies: nginx, Caddy, HAProxy and Apache of Debian before a gateway, with TLS."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from yarl import URL

from delivery.database.clock import utc_now
from gateway_process import gateway, reserve_port

PROXIES = Path(__file__).parents[3] / "deploy" / "proxies"
NAME = "localhost"
PATH = f"{os.environ['PATH']}:/usr/sbin"
LARGE = 3 * 1024 * 1024
"""More than the megabyte that nginx allows by default."""
FAILURES = 60
"""More wrong keys than an address may try."""

NGINX = """daemon off; master_process off; pid "{home}/pid";
events {{}}
http {{ access_log off;
client_body_temp_path "{home}/1"; proxy_temp_path "{home}/2"; fastcgi_temp_path "{home}/3";
uwsgi_temp_path "{home}/4"; scgi_temp_path "{home}/5";
{site} }}
"""


APACHE_MODULES = (
    "mpm_event authz_core headers http2 proxy proxy_http proxy_wstunnel rewrite socache_shmcb ssl"
)
APACHE = """ServerRoot "{home}"
PidFile "{home}/pid"
DefaultRuntimeDir "{home}"
ErrorLog "{home}/errors"
Listen 127.0.0.1:{port}
""" + "".join(
    f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n" for name in APACHE_MODULES.split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A self-signed certificate for NAME: its file, that of its key, and one with both."""

    certificate: Path
    key: Path
    both: Path


def create_certificate(home: Path) -> Certificate:
    """Write a certificate that ends in an hour."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)]),
    )
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(utc_now() - timedelta(hours=1)).not_valid_after(
        utc_now() + timedelta(hours=1)
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    made = Certificate(certificate=home / "certificate", key=home / "key", both=home / "both")
    for file, content in (
        (made.certificate, certificate),
        (made.key, secret),
        (made.both, certificate + secret),
    ):
        file.write_bytes(content)
    return made


def nginx(home: Path, site: str, port: int, cert: Certificate) -> list[str]:
    """Write the site into a configuration of nginx; return its command line."""
    site = site.replace("listen 443", f"listen 127.0.0.1:{port}").replace("bots.example.org;", f"{NAME};")
    site = site.replace("/etc/ssl/bots.example.org.pem", str(cert.certificate))
    site = site.replace("/etc/ssl/bots.example.org.key", str(cert.key))
    (home / "nginx.conf").write_text(NGINX.format(home=home, site=site))
    return ["nginx", "-c", f"{home}/nginx.conf", "-p", str(home), "-e", f"{home}/errors"]


def caddy(home: Path, site: str, port: int, cert: Certificate) -> list[str]:
    """Write the site with this certificate; return Caddy's command line."""
    head = f'https://{NAME}:{port} {{\n\tbind 127.0.0.1\n\ttls "{cert.certificate}" "{cert.key}"\n'
    site = site.replace("bots.example.org {\n", head)
    (home / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + site)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", f"{home}/Caddyfile"]


def haproxy(home: Path, site: str, port: int, cert: Certificate) -> list[str]:
    """Write the site with this certificate; return HAProxy's command line."""
    site = site.replace("bind :443", f"bind 127.0.0.1:{port}")
    (home / "haproxy.cfg").write_text(site.replace("/etc/ssl/private/bots.example.org.pem", str(cert.both)))
    return ["haproxy", "-db", "-f", f"{home}/haproxy.cfg"]


def apache(home: Path, site: str, port: int, cert: Certificate) -> list[str]:
    """Write the site into a configuration of Apache; return its command line."""
    site = site.replace("*:443", f"127.0.0.1:{port}").replace("bots.example.org\n", f"{NAME}\n")
    site = site.replace("/etc/ssl/bots.example.org.pem", str(cert.certificate))
    site = site.replace("/etc/ssl/bots.example.org.key", str(cert.key))
    (home / "apache.conf").write_text(APACHE.format(home=home, port=port) + site)
    return ["apache2", "-X", "-f", f"{home}/apache.conf"]


KINDS: dict[str, tuple[str, Callable[[Path, str, int, Certificate], list[str]]]] = {
    "nginx": ("nginx.conf", nginx),
    "caddy": ("Caddyfile", caddy),
    "haproxy": ("haproxy.cfg", haproxy),
    "apache2": ("apache.conf", apache),
}


BELOW = {
    "nginx": (
        "location / {\n        proxy_pass http://127.0.0.1:8080;",
        "location /bots/ {\n        proxy_pass http://127.0.0.1:8080/;",
    ),
    "caddy": (
        "reverse_proxy 127.0.0.1:8080",
        "handle_path /bots/* {\n\t\treverse_proxy 127.0.0.1:8080\n\t}",
    ),
    "haproxy": (
        "    default_backend dovecote",
        "    http-request replace-path /bots/(.*) /\\1\n    default_backend dovecote",
    ),
    "apache2": ('ProxyPass "/" ', 'ProxyPass "/bots/" '),
}
"""A part of each file, and its replacement for a gateway below /bots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxied:
    """A gateway behind a proxy at `url`."""

    url: str
    key: str
    trusted: ssl.SSLContext

    @asynccontextmanager
    async def session(
        self, *, key: str = "", address: str = "127.0.0.1"
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """Open a session that comes from a loopback address."""
        connector = aiohttp.TCPConnector(ssl=self.trusted, local_addr=(address, 0), family=socket.AF_INET)
        headers = {"Authorization": f"Bearer {key or self.key}"}
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(
            f"{self.url}/", headers=headers, connector=connector, timeout=timeout
        ) as session:
            yield session


@asynccontextmanager
async def proxy(kind: str, home: Path, url: URL, cert: Certificate, target: str) -> AsyncIterator[None]:
    """Run a proxy with the configuration of deploy/proxies, but for names, ports, files and the path."""
    file, configure = KINDS[kind]
    site = (PROXIES / file).read_text()
    if url.path != "/":
        old, new = BELOW[kind]
        assert old in site, "docs/guide/deployment.md names these lines"
        site = site.replace(old, new)
    site = site.replace("127.0.0.1:8080", target)
    command = configure(home, site, url.port or 0, cert)
    env = {"PATH": PATH, "HOME": str(home), "XDG_DATA_HOME": str(home)}
    with (home / "log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(*command, cwd=home, env=env, stdout=log, stderr=log)
    try:
        yield
    finally:
        running.kill()  # one process: none of them forks here
        await running.wait()


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[*KINDS, *(f"{kind} /bots" for kind in BELOW)]
)
async def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Proxied]:
    """Run a gateway behind each of the proxies, and below a path."""
    kind, _, path = request.param.partition(" ")
    if shutil.which(kind, path=PATH) is None:
        pytest.skip(f"{kind} is not installed")
    home, port = tmp_path_factory.mktemp(kind), reserve_port()
    cert, url = create_certificate(home), f"https://{NAME}:{port}{path}"
    env = {"DOVECOTE_PUBLIC_URL": url, "DOVECOTE_TRUSTED_PROXIES": "127.0.0.1/32"}
    async with (
        gateway(home / "data", env=env) as process,
        proxy(kind, home, URL(url), cert, process.url.removeprefix("http://")),
    ):
        trusted = ssl.create_default_context(cafile=str(cert.certificate))
        found = Proxied(url=url, key=process.key, trusted=trusted)
        await until_it_answers(found)
        yield found


async def until_it_answers(proxied: Proxied) -> None:
    """Wait until the proxy accepts connections."""
    async with asyncio.timeout(30), proxied.session() as session:
        while True:
            try:
                async with session.get("healthz") as answer:
                    assert answer.status == 200
                    return
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.05)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_events_arrive_at_once(proxied: Proxied) -> None:
    """The events of a turn arrive in a stream that stays open and to which nothing is added."""
    path, headers = "conversations/events/events", {"Accept": "text/event-stream"}
    async with proxied.session() as session:
        await start_turn(session, "!echo one")
        async with session.get(path, params={"after": "0"}, headers=headers) as stream:
            await until_completed(stream)
            await start_turn(session, "!echo two")
            await until_completed(stream)


async def start_turn(session: aiohttp.ClientSession, command: str) -> None:
    """Start a turn in the conversation `events`."""
    turn = {"input": command, "conversation": "events"}
    async with session.post("agents/default/turns", json=turn) as answer:
        assert answer.status == 202, await answer.text()


async def until_completed(stream: aiohttp.ClientResponse) -> None:
    """Read events until a turn is completed."""
    while await stream.content.readline() != b"event: turn.completed\n":
        assert not stream.content.at_eof()


async def test_websockets_pass(proxied: Proxied) -> None:
    """A message that is sent in a WebSocket is answered there."""
    async with proxied.session() as session, session.ws_connect("ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": "socket", "after": 0})
        await socket.send_json({"type": "send", "conversation": "socket", "text": "!echo hi", "id": "1"})
        async with asyncio.timeout(30):
            while (await socket.receive_json())["type"] != "turn.completed":
                pass


async def test_uploads_are_not_limited_by_the_proxy(proxied: Proxied) -> None:
    """A file of some megabytes is stored; its link has the public address and returns it."""
    body = os.urandom(LARGE)
    async with proxied.session() as session:
        async with session.post("files", params={"name": "large"}, data=BytesIO(body)) as answer:
            assert answer.status == 201, await answer.text()
            link = (await answer.json())["url"]
        assert link.startswith(f"{proxied.url}/")
        async with session.get(link) as answer:
            assert await answer.read() == body


async def test_addresses_are_those_of_clients(proxied: Proxied) -> None:
    """One that tries keys is locked out, also if it claims another address; others are not."""
    async with proxied.session(key="dvk_wrong", address="127.0.0.2") as guessing:
        statuses = [await status_of(guessing) for _ in range(FAILURES)]
        assert statuses[0] == 401
        assert statuses[-1] == 429
        assert await status_of(guessing, {"X-Forwarded-For": "192.0.2.1"}) == 429
    async with proxied.session() as session:
        assert await status_of(session) == 200


async def status_of(session: aiohttp.ClientSession, headers: dict[str, str] | None = None) -> int:
    """Return the status of a request for the account."""
    async with session.get("accounts/me", headers=headers) as answer:
        return answer.status
