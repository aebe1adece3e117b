"""A real engine for tests: a private dockerd or Podman on a private socket, an image of this machine's files.

Nothing is downloaded. The engine is started once for a whole test run, by the first test process that needs
it. A watchdog process ends it, and removes its files, when that run is over, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from session import unmarked

IMAGE = "localhost/dovecote-test:latest"
NETWORK = "dovecote-test"
_START_SECONDS = 30.0
_REQUIRED = {"docker": ("dockerd", "containerd", "curl"), "podman": ("podman", "conmon", "curl")}
"""The programs that each kind of engine needs."""
_NAMES = {"docker": "dockerd", "podman": "Podman"}
_PROGRAMS = (
    *("bash", "dash", "env", "cat", "ls", "sleep", "id", "head", "tail", "dd", "mkdir", "rm", "touch", "ps"),
    *(
        "true",
        "false",
        "echo",
        "grep",
        "sed",
        "find",
        "wc",
        "sort",
        "cp",
        "mv",
        "chmod",
        "stat",
        "date",
        "tr",
    ),
    *("mktemp", "setsid", "timeout", "mkfifo", "tee", "cut", "od", "readlink", "ln", "du", "df", "hostname"),
    *(
        "pwd",
        "printf",
        "seq",
        "basename",
        "dirname",
        "sync",
        "sha256sum",
        "base64",
        "uname",
        "nohup",
        "whoami",
    ),
    *("truncate", "tar", "gzip", "curl", "kill", "yes", "chown", "split", "git"),
)
_GIT_PROGRAMS = Path("/usr/lib/git-core")
_GIT_TRANSPORTS = ("git-remote-http", "git-remote-https")
"""What git runs for addresses of the web; the rest of git is in the program itself."""
_FOLDERS = (
    "tmp",
    "proc",
    "dev",
    "sys",
    "root",
    "home",
    "run",
    "var/tmp",
    "usr/sbin",
    "usr/local/bin",
    "etc",
    "mnt",
    "usr/share/git-core/templates",
)
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_EXCLUDED = {"test", "tests", "idlelib", "lib2to3", "tkinter", "ensurepip", "__pycache__", "dist-packages"}
_EXCLUDED |= {"site-packages", "turtledemo", "pydoc_data", "distutils"}

_WATCHDOG_PROGRAM = """
import json, os, select, shutil, subprocess, sys
fields = json.loads(sys.argv[1])
os.setsid()
run = os.pidfd_open(fields["run"])
log = open(fields["log"], "wb")
engine = subprocess.Popen(fields["argv"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
end = os.pidfd_open(engine.pid)
select.select([run, end], [], [])
ask = ["curl", "-s", "-m", "10", "--unix-socket", fields["directory"] + "/docker.sock"]
listed = subprocess.run([*ask, "http://engine/containers/json?all=1"], stdout=subprocess.PIPE).stdout
for one in json.loads(listed or b"[]"):
    subprocess.run([*ask, "-X", "DELETE", "http://engine/containers/" + one["Id"] + "?force=1"])
subprocess.run([*ask, "-X", "DELETE", "http://engine/networks/" + fields["network"]])
engine.terminate()
try:
    engine.wait(20)
except subprocess.TimeoutExpired:
    engine.kill()
if os.path.exists("/sys/class/net/" + fields["bridge"]):
    subprocess.run(["ip", "link", "delete", fields["bridge"]])
inside = fields["directory"] + "/"
for entry in os.listdir("/proc"):  # Podman's conmon makes the directory again, minutes after a command's end
    try:
        command = open("/proc/" + entry + "/cmdline", "rb").read()
        if command.split(b"\\0")[0].endswith(b"conmon") and inside.encode() in command:
            os.kill(int(entry), 9)
    except OSError:
        pass
for line in reversed(list(open("/proc/self/mounts"))):
    if line.split()[1].startswith(inside):
        subprocess.run(["umount", "-l", line.split()[1]])
shutil.rmtree(fields["directory"], ignore_errors=True)
"""

_CLAMPING_RUNTIME = """
# runc, for a test machine that may not raise limits: Podman asks for its own default of processes.
import json, os, resource, sys
words = sys.argv[1:]
path = None
if "create" in words:
    path = words[words.index("--bundle") + 1] + "/config.json"
elif "--process" in words:
    path = words[words.index("--process") + 1]
if path:
    config = json.load(open(path))
    for limit in config.get("process", config).get("rlimits", []):
        most = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if most != resource.RLIM_INFINITY:
            limit.update(hard=min(limit["hard"], most), soft=min(limit["soft"], most))
    json.dump(config, open(path, "w"))
os.execvp("runc", ["runc", *words])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcess:
    """A running engine."""

    directory: Path

    @property
    def host(self) -> str:
        """Its address."""
        return f"unix://{self.directory}/docker.sock"

    def call(self, method: str, path: str, *, body: Path | None = None, json_body: object = None) -> str:
        """Send a request to the engine by curl and return the response."""
        words = ["curl", "-sS", "-X", method, "--unix-socket", str(self.directory / "docker.sock")]
        if body is not None:
            words += ["-T", str(body), "-H", "Content-Type: application/x-tar"]
        if json_body is not None:
            words += ["-d", json.dumps(json_body), "-H", "Content-Type: application/json"]
        answer = subprocess.run(
            [*words, f"http://engine{path}"], capture_output=True, check=False, timeout=300
        )
        return (answer.stdout + answer.stderr).decode()


@cache
def shared_engine(kind: str = "docker") -> EngineProcess:
    """Return this test run's engine with its image; skips, with the reason, where there can be none.

    `DOVECOTE_TEST_ENGINE` names the directory of an engine that runs already, with its socket `docker.sock`.
    """
    if given := os.environ.get("DOVECOTE_TEST_ENGINE"):
        return EngineProcess(directory=Path(given))
    for program in _REQUIRED[kind]:
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine (Debian: docker.io containerd podman curl)")
    if os.geteuid() != 0:
        pytest.skip("only root may start a container engine")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    owner = os.getppid() if run else os.getpid()
    # Podman takes no run directory with a path of more than 50 characters.
    directory = Path(tempfile.gettempdir(), f"dovecote-{kind}-{run[:12] if run else owner}")
    directory.mkdir(mode=0o700, exist_ok=True)
    engine = EngineProcess(directory=directory)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "ready").exists():
            _start(engine, owner, _docker_argv if kind == "docker" else _podman_argv)
            (directory / "ready").write_text(_find_problem(engine))
    problem = (directory / "ready").read_text()
    if problem:
        pytest.skip(f"no container can be run on this machine: {problem}")
    return engine


@cache
def version(kind: str = "docker") -> str:
    """Return the name and version of this test run's engine."""
    reported = json.loads(shared_engine(kind).call("GET", "/version"))
    return f"{_NAMES[kind]} {reported['Version']}, Linux {os.uname().release}"


def open_network(engine: EngineProcess) -> str:
    """Return a bridge of the engine for allow-all; skips where the kernel has none."""
    # A bridge that another engine left behind may have the usual subnet, and would get the answers.
    # Podman has 10.88.0.0/16 for itself.
    one, other = hashlib.sha256(str(engine.directory).encode()).digest()[:2]
    one = 128 + one % 64
    subnets = [
        {"Subnet": f"10.{one}.{other}.0/24", "Gateway": f"10.{one}.{other}.1"},
        {"Subnet": f"fd00:{one:x}:{other:x}::/64", "Gateway": f"fd00:{one:x}:{other:x}::1"},
    ]
    network = {
        "Name": NETWORK,
        "CheckDuplicate": True,
        "EnableIPv6": True,
        "IPAM": {"Driver": "default", "Config": subnets},
    }
    said = engine.call("POST", "/networks/create", json_body=network)
    if "Id" not in said and "already exists" not in said:
        pytest.skip(f"no network can be made on this machine: {said}")
    return NETWORK


def _docker_argv(at: Path, host: str) -> list[str]:
    argv = ["dockerd", "--host", host, "--data-root", f"{at}/data", "--exec-root", f"{at}/exec"]
    argv += ["--pidfile", f"{at}/pid", f"--bridge={_bridge(at)}"]
    argv += ["--iptables=false", "--ip6tables=false"]
    (at / "config/none.json").write_text("{}")
    return [*argv, "--ip-forward=false", "--ip-masq=false", "--config-file", f"{at}/config/none.json"]


def _bridge_name(at: Path) -> str:
    return f"dvc{hashlib.sha256(str(at).encode()).hexdigest()[:8]}"


def _bridge(at: Path) -> str:
    """Return a bridge of the engine's own beside docker0, which dockerd without a bridge removes."""
    if not Path("/sys/class/net/docker0").exists():
        return "none"
    name, number = _bridge_name(at), int(_bridge_name(at)[3:7], 16) & 0xFFFC
    address = f"169.254.{number >> 8}.{number & 255 | 1}/30"
    for words in (("link", "add", name, "type", "bridge"), ("address", "add", address, "dev", name)):
        subprocess.run(["ip", *words], capture_output=True, check=True)
    return name


def _podman_argv(at: Path, host: str) -> list[str]:
    runtime = at / "config/runc"
    runtime.write_text(f"#!{sys.executable}\n{_CLAMPING_RUNTIME}")
    runtime.chmod(0o755)
    # Podman 4 leaves each image that it imports in TMPDIR, by default /var/tmp.
    argv = ["env", f"TMPDIR={at}/config", "podman", "--root", f"{at}/data"]
    argv += ["--runroot", f"{at}/run", "--tmpdir", f"{at}/tmp", "--storage-driver", "overlay"]
    argv += ["--cgroup-manager", "cgroupfs", "--runtime", str(runtime)]
    return [*argv, "system", "service", "--time", "0", host]


def _start(engine: EngineProcess, owner: int, argv_of: Callable[[Path, str], list[str]]) -> None:
    at = engine.directory
    (at / "config").mkdir(exist_ok=True)
    argv = argv_of(at, engine.host)
    fields = {"run": owner, "argv": argv, "log": f"{at}/log", "directory": str(at), "network": NETWORK}
    fields["bridge"] = _bridge_name(at)
    subprocess.Popen(
        [sys.executable, "-c", _WATCHDOG_PROGRAM, json.dumps(fields)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=unmarked() | {"DOCKER_CONFIG": f"{at}/config"},
    ).returncode = 0  # no process waits for it: it outlives us on purpose


def _find_problem(engine: EngineProcess) -> str:
    """Wait for the engine, give it its image, run a container; return what went wrong, if anything."""
    deadline = time.monotonic() + _START_SECONDS
    while engine.call("GET", "/_ping") != "OK":
        if time.monotonic() > deadline or not engine.directory.exists():
            return _log_tail(engine)
        time.sleep(0.05)
    image = engine.directory / "image.tar"
    given = os.environ.get("DOVECOTE_TEST_IMAGE")
    if given:
        image.symlink_to(Path(given).absolute())
    else:
        write_image(image)
    repository, _, tag = IMAGE.rpartition(":")
    said = engine.call("POST", f"/images/create?fromSrc=-&repo={repository}&tag={tag}", body=image)
    image.unlink()
    if "error" in said:
        return said
    made = json.loads(engine.call("POST", "/containers/create", json_body=_TEST_CONTAINER))
    if "Id" not in made:
        return str(made)
    said = engine.call("POST", f"/containers/{made['Id']}/start")
    engine.call("DELETE", f"/containers/{made['Id']}?force=1")
    return said


_TEST_CONTAINER = {
    "Image": IMAGE,
    "Cmd": ["true"],
    "HostConfig": {"NetworkMode": "none", "Memory": 64 * 1024 * 1024},
}


def _log_tail(engine: EngineProcess) -> str:
    try:
        lines = (engine.directory / "log").read_text(errors="replace").splitlines()
    except OSError:
        return "dockerd ended at once"
    said = [line for line in lines if "level=error" in line or "level=fatal" in line or "failed" in line]
    return (said or lines or ["dockerd does not come up"])[-1][-500:]


def write_image(path: Path) -> None:
    """Write a root file system of this machine's own programs, libraries and python."""
    with tarfile.open(path, "w") as tar:
        for name in _FOLDERS:
            _add_folder(tar, name, 0o1777 if name.endswith("tmp") else 0o755)
        for name, target in _LINKS.items():
            _add_link(tar, name, target)
        _add_text(
            tar,
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/bash\nsandbox:x:1000:1000::/home/sandbox:/bin/bash\n",
        )
        _add_text(tar, "etc/group", "root:x:0:\nsandbox:x:1000:\n")
        _add_link(tar, "usr/bin/sh", "dash")
        for place in sorted(_source_paths()):
            tar.add(place.resolve(), arcname=_path_in_image(place), recursive=False)
        _add_python(tar)


def _path_in_image(place: Path) -> str:
    """Return a file's path in the image: everything is below /usr, as on a merged system."""
    text = str(place)
    return text.lstrip("/") if text.startswith("/usr/") else f"usr{text}"


def _source_paths() -> set[Path]:
    found = {Path(path) for name in _PROGRAMS if (path := shutil.which(name, path="/usr/bin:/bin"))}
    transports = (_GIT_PROGRAMS / name for name in _GIT_TRANSPORTS)
    found |= {program for program in transports if program.exists()}
    return found | {library for program in found | set(_extensions()) for library in _libraries(program)}


def _libraries(program: Path) -> Iterator[Path]:
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    yield from (Path(path) for path in re.findall(r"(/\S+\.so\S*)", listed))


def _python() -> tuple[Path, Path]:
    """Return the system's python3 and its library."""
    program = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin") or sys.executable
    ask = "import sysconfig; print(sysconfig.get_paths()['stdlib'])"
    answer = subprocess.run([program, "-I", "-c", ask], capture_output=True, text=True, check=True)
    return Path(program).resolve(), Path(answer.stdout.strip())


def _extensions() -> Iterator[Path]:
    program, library = _python()
    yield program
    yield from library.glob("lib-dynload/*.so")


def _add_python(tar: tarfile.TarFile) -> None:
    program, library = _python()
    tar.add(program, arcname=_path_in_image(program), recursive=False)
    _add_link(tar, "usr/bin/python3", str(program))

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(entry.name).name
        return None if name in _EXCLUDED or name.startswith("config-") else entry

    tar.add(library, arcname=_path_in_image(library), filter=wanted)


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text), 0o644
    tar.addfile(entry, io.BytesIO(text.encode()))
