"""The node of a loopback cluster: pods run as real processes, volumes are directories."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kubernetes_objects import Object, ObjectStore, now
from process_hosts import ProcessHost

HOME = "/home/sandbox"
VOLUMES = "volumes"


class LoopbackNode:
    """Starts the pods of the store and ends those that are deleted."""

    def __init__(self, store: ObjectStore, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._hosts: dict[str, ProcessHost] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.is_lost = False
        """Whether the kubelet does not answer, so that no pod ends."""

    def sync(self) -> None:
        """Begin what the pods and claims of the store need; called after each change."""
        for pod in self._store.of_kind("pods"):
            uid = pod["metadata"]["uid"]
            ending = "deletionTimestamp" in pod["metadata"]
            if uid in self._tasks and not self._tasks[uid].done():
                continue
            if ending and self.is_lost:
                continue
            if ending:
                self._tasks[uid] = asyncio.create_task(self._end(pod))
            elif uid not in self._hosts and pod["status"]["phase"] == "Pending":
                self._begin(pod)
        for claim in self._store.of_kind("persistentvolumeclaims"):
            if "deletionTimestamp" in claim["metadata"] and not self._users(claim):
                shutil.rmtree(self._directory / VOLUMES / claim["metadata"]["uid"], ignore_errors=True)
                self._store.remove("persistentvolumeclaims", claim)

    def _begin(self, pod: Object) -> None:
        image = pod["spec"]["containers"][0]["image"]
        if image.startswith("missing"):
            waiting = {"reason": "ImagePullBackOff", "message": f"Back-off pulling image {image!r}"}
            self._report(pod, "Pending", {"waiting": waiting})
        elif (directory := self._disk(pod)) is not None:
            uid = pod["metadata"]["uid"]
            self._hosts[uid] = ProcessHost(directory, HOME)
            self._tasks[uid] = asyncio.create_task(self._start(pod))

    def _disk(self, pod: Object) -> Path | None:
        """Return the directory of a pod's volume, else its own; None while its claim does not exist."""
        for volume in pod["spec"].get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                name = volume["persistentVolumeClaim"]["claimName"]
                key = ("persistentvolumeclaims", pod["metadata"]["namespace"], name)
                claim = self._store.objects.get(key)
                return self._directory / VOLUMES / str(claim["metadata"]["uid"]) if claim else None
        return self._directory / "pods" / str(pod["metadata"]["uid"])

    async def _start(self, pod: Object) -> None:
        await self._hosts[pod["metadata"]["uid"]].start()
        self._report(pod, "Running", {"running": {"startedAt": now()}})

    def _report(self, pod: Object, phase: str, state: Mapping[str, Any]) -> None:
        """Set the status of a pod, unless it has it."""
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        status = {"phase": phase, "containerStatuses": [{"name": "sandbox", "state": dict(state)}]}
        current = self._store.objects.get(("pods", namespace, name))
        if current is not None and current["status"] != status:
            self._store.put("pods", namespace, {**current, "status": status})

    async def _end(self, pod: Object) -> None:
        host = self._hosts.pop(pod["metadata"]["uid"], None)
        if host is not None and host.directory.parent.name == VOLUMES:
            await host.stop()
            await asyncio.to_thread(shutil.rmtree, host.directory / "tmp", ignore_errors=True)
        elif host is not None:
            await host.terminate()
        self._store.remove("pods", pod)

    def _users(self, claim: Object) -> Sequence[Object]:
        uid = claim["metadata"]["uid"]
        return [pod for pod in self._store.of_kind("pods") if (self._disk(pod) or Path()).name == uid]

    def fail(self, pod: Object) -> None:
        """Report a pod's end, as after an eviction."""
        self._report(pod, "Failed", {"terminated": {"exitCode": 137, "reason": "OOMKilled"}})

    async def evict(self, pod: Object) -> None:
        """End a pod and its processes; the connections of its commands end without a status."""
        host = self._hosts[pod["metadata"]["uid"]]
        self.fail(pod)
        await host.stop()

    def host_of(self, pod: Object) -> ProcessHost | None:
        """Return the host of a running pod."""
        running = pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        return self._hosts.get(pod["metadata"]["uid"]) if running else None

    def run(self, pod: Object, command: Sequence[str]) -> AsyncGenerator[Mapping[str, Any], None]:
        """Start a command in a running pod, with the environment of its container."""
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "KUBERNETES_PORT": "not for runs"}
        for one in pod["spec"]["containers"][0].get("env", ()):
            field = one["valueFrom"]["fieldRef"]["fieldPath"]
            env[one["name"]] = str(pod["metadata"][field.removeprefix("metadata.")])
        return self._hosts[pod["metadata"]["uid"]].run(command, env=env, cwd="/", stdin=True)

    async def close(self) -> None:
        """End every pod."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for host in self._hosts.values():
            await host.terminate()
