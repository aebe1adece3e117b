"""The objects of a Kubernetes API server on loopback: names, versions, patches, deletion and their owners.

Written from the Kubernetes API reference ("API concepts": resourceVersion, limit and continue, merge patch,
Status; finalizers of pods and claims; garbage collection by ownerReferences). No admission, no defaults.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]

PATH = re.compile(
    r"^(?P<group>/api/v1|/apis/[^/]+/[^/]+)(/namespaces/(?P<namespace>[^/]+))?/(?P<kind>[a-z]+)"
    r"(/(?P<name>[^/]+)(/(?P<part>status))?)?$"
)
KINDS = {
    "/api/v1": {"pods", "persistentvolumeclaims", "namespaces"},
    "/apis/networking.k8s.io/v1": {"networkpolicies"},
    "/apis/agents.x-k8s.io/v1beta1": {"sandboxes"},
}
MERGE_PATCH = "application/merge-patch+json"
FINALIZED = frozenset({"pods", "persistentvolumeclaims"})
"""Kinds that exist until the node has ended their processes, or released their volume."""
NAMESPACES = ("default", "kube-system", "dovecote-sandboxes")


class StatusError(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "kind": "Status",
            "status": "Failure",
            "reason": reason,
            "message": message,
            "code": status,
        }


def now() -> str:
    """Return the time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ObjectStore:
    """The objects by kind, namespace and name; `changed` is called after each change."""

    def __init__(self, changed: Callable[[], None], *, controller: bool) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.groups = {group for group in KINDS if controller or "agents" not in group}
        self._changed = changed
        self._version = 0
        for name in NAMESPACES:
            self.put("namespaces", "", {"metadata": {"name": name}})

    def of_kind(self, kind: str) -> Iterator[Object]:
        """Yield the objects of a kind."""
        for key, found in list(self.objects.items()):
            if key[0] == kind:
                yield found

    def handle(
        self, method: str, path: str, query: Mapping[str, str], body: Any, *, patch_type: str = ""
    ) -> Object:
        """Answer a request; raises StatusError."""
        match = PATH.match(path)
        if match is None or match["group"] not in self.groups or match["kind"] not in KINDS[match["group"]]:
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        kind, namespace, name = match["kind"], match["namespace"] or "", match["name"]
        if method == "POST":
            return self._create(kind, namespace, body)
        if name is None:
            return self._list(kind, namespace, query)
        found = self._get(kind, namespace, name)
        if method == "GET":
            return found
        if method == "DELETE":
            return self._delete(kind, found)
        changed = self._changed_by(method, found, body, patch_type)
        if match["part"] == "status":
            changed = {**found, "status": changed.get("status")}
        return found if changed == found else self.put(kind, namespace, changed)

    def _changed_by(self, method: str, found: Object, body: Any, patch_type: str) -> Object:
        """Return an object as PUT or PATCH make it; PUT with an old resourceVersion is a conflict."""
        if method == "PATCH" and patch_type == MERGE_PATCH:
            return dict(merge(found, body))
        if method != "PUT":
            raise StatusError(415, "UnsupportedMediaType", f"{method} with {patch_type} is not supported")
        version, metadata = body["metadata"].get("resourceVersion"), found["metadata"]
        if version and version != metadata["resourceVersion"]:
            raise StatusError(409, "Conflict", f'"{metadata["name"]}": the object has been modified')
        return {**body, "metadata": {**metadata, **body["metadata"]}}

    def _get(self, kind: str, namespace: str, name: str) -> Object:
        try:
            return self.objects[kind, namespace, name]
        except KeyError:
            raise StatusError(404, "NotFound", f'{kind} "{name}" not found') from None

    def _create(self, kind: str, namespace: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        if kind != "namespaces" and ("namespaces", "", namespace) not in self.objects:
            raise StatusError(404, "NotFound", f'namespaces "{namespace}" not found')
        if body["metadata"].get("namespace", namespace) != namespace:
            raise StatusError(400, "BadRequest", "the namespace of the object does not match the request")
        if (kind, namespace, name) in self.objects:
            raise StatusError(409, "AlreadyExists", f'{kind} "{name}" already exists')
        made = copy.deepcopy(body)
        made["metadata"] |= {"uid": secrets.token_hex(8), "creationTimestamp": now(), "generation": 1}
        if kind == "pods":
            made["status"] = {"phase": "Pending"}
        return self.put(kind, namespace, made)

    def _list(self, kind: str, namespace: str, query: Mapping[str, str]) -> Object:
        selector = query.get("labelSelector", "")
        found = [
            one
            for key, one in sorted(self.objects.items())
            if key[0] == kind and namespace in {"", key[1]} and _is_selected(one, selector)
        ]
        begin = int(query.get("continue") or 0)
        end = begin + int(query.get("limit") or len(found) or 1)
        more = str(end) if end < len(found) else ""
        return {"kind": "List", "metadata": {"continue": more}, "items": found[begin:end]}

    def _delete(self, kind: str, found: Object) -> Object:
        metadata = found["metadata"]
        if kind in FINALIZED:
            if "deletionTimestamp" not in metadata:
                self.put(
                    kind,
                    metadata["namespace"],
                    {**found, "metadata": {**metadata, "deletionTimestamp": now()}},
                )
            return found
        return self.remove(kind, found)

    def put(self, kind: str, namespace: str, changed: Object) -> Object:
        """Store an object under a new version; raises StatusError for an invalid one."""
        mode = changed.get("spec", {}).get("operatingMode", "Running")
        if kind == "sandboxes" and mode not in {"Running", "Suspended"}:
            raise StatusError(422, "Invalid", f"spec.operatingMode: Unsupported value: {mode!r}")
        self._version += 1
        metadata = {**changed["metadata"], "resourceVersion": str(self._version)}
        if namespace:
            metadata["namespace"] = namespace
        stored = {**changed, "metadata": metadata}
        self.objects[kind, namespace, metadata["name"]] = stored
        self._changed()
        return stored

    def remove(self, kind: str, found: Object) -> Object:
        """Remove an object for good, and begin to delete what it owns."""
        metadata = found["metadata"]
        self.objects.pop((kind, metadata.get("namespace", ""), metadata["name"]), None)
        for (other, _, _), one in list(self.objects.items()):
            if any(owner["uid"] == metadata["uid"] for owner in one["metadata"].get("ownerReferences", ())):
                self._delete(other, one)
        self._changed()
        return found


def _is_selected(found: Object, selector: str) -> bool:
    """Return whether an object has the labels of a selector: `name` or `name=value`, with commas."""
    labels = found["metadata"].get("labels") or {}
    for word in filter(None, selector.split(",")):
        name, equals, value = word.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    return True


def merge(found: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(found) if isinstance(found, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged
