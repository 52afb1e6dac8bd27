"""Check of a cluster of Kubernetes without a pod: the API, rights, admission and room."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from mesh.backends.pods.api import Api, ApiAway, ApiFailed
from mesh.backends.pods.objects import ApiResources, Nodes, Pod, Quotas, Review, Thing, Version
from mesh.config.podspec import PodGroup
from mesh.core.findings import Finding, Verdict, failed, ok, warning
from mesh.hosts.kubernetes import gang, render, room
from mesh.hosts.kubernetes.render import Made

ASKED_AT_ONCE = 8  # rights
CREDENTIALS_END_S = 3600.0  # before the end of credentials; a run may take longer
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CREATE_EXEC = "pods/exec create"  # required by servers from 1.35 on only
OPTIONAL = {  # rights, and what is missing without them
    "events list": "messages lack reasons that only events contain",
    "resourcequotas list": "quotas are not checked",
    "secrets create": "each pod has a stream of its own, also from `switchboard_from` pods on",
    CREATE_EXEC: "from version 1.35 on the server asks for it",
}
DRY_RUN_REFUSED = "does not support dry run"  # in the words of a server whose webhook cannot answer


class Right(Struct, frozen=True, kw_only=True):
    """A verb on a resource of the namespace."""

    group: str
    resource: str
    subresource: str
    verb: str

    def __str__(self) -> str:
        resource = "/".join(filter(None, (self.resource, self.subresource)))
        return f"{resource} {self.verb}"


def rights_of(*, is_existing: bool, gang_kind: str = "") -> list[Right]:
    """Return the rights that mesh needs, those of the Role that it prints."""
    found = []
    rules = render.role_object(is_existing=is_existing, gang_kind=gang_kind)["rules"]
    assert isinstance(rules, list)
    for rule in rules:
        for resource in rule["resources"]:
            name, _, sub = resource.partition("/")
            found += [
                Right(group=rule["apiGroups"][0], resource=name, subresource=sub, verb=verb) for verb in rule["verbs"]
            ]
    return found


class Preflight:
    """The findings of a check that need no pod, up to the first failure."""

    def __init__(self, api: Api, made: Made | None, there: Sequence[Pod] = ()) -> None:
        """made: the pods that mesh makes; None: existing pods. there: those of them that need not be made any more"""
        self._api, self._made, self._there = api, made, there

    def findings(self) -> list[Finding]:
        """Return the findings in their order."""
        found: dict[str, Finding] = {}
        try:
            for finding in self._steps():
                found[finding.name] = finding
                if finding.verdict is Verdict.FAILED:
                    break
        except ApiAway as error:  # the server stopped answering after the first step
            found["api"] = failed("api", str(error), self._api.place.kubectl("get --raw /readyz"))
        return list(found.values())

    def _steps(self) -> Iterator[Finding]:
        finding, minor = self._reached()
        yield finding
        if (lacking := self._gang()) is not None:
            yield lacking
        yield self._rights(minor)
        if self._made is not None:
            pods, finding = self._admitted(self._made)
            yield finding
            yield self._room(self._made, pods)

    def _reached(self) -> tuple[Finding, int]:
        """Return the finding about the API server, and the second number of its version; 0: unknown."""
        api, text = self._api, ""
        try:
            text = api.get("/version", Version).git_version
        except ApiAway as error:
            return failed("api", str(error), api.place.kubectl("get --raw /readyz")), 0
        except ApiFailed as error:
            if error.status != 403:
                return failed("api", str(error), error.hint), 0
        try:
            api.get(f"/api/v1/namespaces/{api.place.namespace}", Thing)
        except ApiFailed as error:
            if error.status == 404:
                context = f" in context {api.place.context}" if api.place.context else ""
                told = f"there is no namespace {api.place.namespace}{context}"
                return failed("api", told, "kubectl get namespaces"), 0
            if error.status == 401:
                return failed("api", str(error), error.hint), 0
        told = f"{text or 'version unknown'} at {api.server}"
        second = text.split(".")[1] if text.count(".") >= 2 else ""
        return _with_life(told, api.credentials_end()), int(second) if second.isdecimal() else 0

    def _gang(self) -> Finding | None:
        """Return the finding about a server that lacks the API of the gang; None: it has it, or there is no gang."""
        kind = self._made.source.template.gang if self._made is not None else ""
        if not kind:
            return None
        name = gang.GANG_APIS[kind]
        hint = f"kubectl api-resources --api-group {gang.GROUP}"
        try:
            found = self._api.get(f"/apis/{name}", ApiResources).resources or ()
        except ApiFailed as error:
            if error.status != 404:
                return warning("api", f"the API of gang: {kind} cannot be looked for: {error}", hint)
            found = ()
        if not any(one.name == gang.RESOURCE for one in found):
            return failed("api", f"the server has no {gang.RESOURCE} of {name}, which gang: {kind} needs", hint)
        return None

    def _rights(self, minor: int) -> Finding:
        kind = self._made.source.template.gang if self._made is not None else ""
        wanted = rights_of(is_existing=self._made is None, gang_kind=kind)
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            try:
                answers = list(pool.map(self._may, wanted))
            except ApiFailed as error:
                hint = f"{self._api.place.kubectl('auth can-i')} create pods"
                return warning("rights", f"cannot be checked: {error}", hint)
        refused = [str(right) for right, may in zip(wanted, answers, strict=True) if not may]
        optional = [one for one in refused if one in OPTIONAL and not (one == CREATE_EXEC and minor >= 35)]
        needed = [one for one in refused if one not in optional]
        namespace = self._api.place.namespace
        options = " --existing" if self._made is None else f" --gang {kind}" if kind else ""
        hint = (
            f"mesh pods role{options} > role.yaml\n"
            f"{self._api.place.kubectl('apply')} -f role.yaml\n"
            f"{self._api.place.kubectl('create rolebinding mesh')} --role=mesh --user=USER"
        )
        if needed:
            return failed("rights", f"missing in namespace {namespace}: {', '.join(needed)}", hint)
        if optional:
            reasons = "; ".join(f"{one} ({OPTIONAL[one]})" for one in optional)
            return warning("rights", f"missing in namespace {namespace}: {reasons}", hint)
        return ok("rights", f"all in namespace {namespace}")

    def _may(self, right: Right) -> bool:
        attributes = {
            "namespace": self._api.place.namespace,
            "group": right.group,
            "resource": right.resource,
            "subresource": right.subresource,
            "verb": right.verb,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        return self._api.post(REVIEWS, body, Review).status.allowed

    def _admitted(self, made: Made) -> tuple[list[Pod], Finding]:
        """Send a pod of each group as a dry run; return the pods as the server would make them, and the finding."""
        pods, index = list[Pod](), 0
        for group in made.source.parts:
            body, index = render.pod_object(made, index, str(uuid.uuid4())), index + group.nodes
            lead = f"group {group.name}: " * bool(group.name)
            try:
                pods.append(self._api.post(self._api.pods, body, Pod, {"dryRun": "All"}))
            except ApiFailed as error:
                hint = f"mesh pods render {made.cluster}  # the pods that were refused"
                if DRY_RUN_REFUSED in str(error):
                    return [Pod()] * len(made.source.parts), warning("admission", f"not checked: {error}", hint)
                return [], failed("admission", f"{lead}{error}", hint)
        what = f"a pod of each of {len(pods)} groups" if made.source.groups else "a pod"
        return pods, ok("admission", f"{what} is admitted (dry run)")

    def _room(self, made: Made, pods: Sequence[Pod]) -> Finding:
        """Return the finding about quotas and nodes. pods: of each group one, as it was admitted"""
        api, source = self._api, made.source
        missing = [max(0, group.nodes - self._count(group)) for group in source.parts]
        told = [f"{source.nodes - sum(missing)} of {source.nodes} pods are there"]
        try:
            quotas = api.get(api.path("resourcequotas"), Quotas).items or ()
            if lines := room.shortages(quotas, [one for one in zip(pods, missing, strict=True) if one[1]]):
                return failed("schedule", "; ".join(lines), api.place.kubectl("describe resourcequota"))
        except ApiFailed:
            told.append("quotas may not be read")
        try:
            nodes = api.get("/api/v1/nodes", Nodes).items or ()
        except ApiFailed:
            told.append("nodes may not be read")
        else:
            fits = [room.fit_of(nodes, pod) for pod in pods]
            for group, (count, others) in zip(source.parts, fits, strict=True):
                pod = f"a pod of group {group.name}" if group.name else "a pod"
                told.append(f"{count} of {len(nodes)} nodes could hold {pod}" + f" (others: {others})" * bool(others))
            if any(wanted and not count for wanted, (count, _) in zip(missing, fits, strict=True)):
                hint = "kubectl describe nodes  # an autoscaler may add others"
                return warning("schedule", "; ".join(told), hint)
        if any(missing):
            hint = f"mesh up {made.cluster} && mesh check {made.cluster}  # makes them, and checks what is in them"
            return warning("schedule", "; ".join(told), hint)
        return ok("schedule", "; ".join(told))

    def _count(self, group: PodGroup) -> int:
        """Return how many pods of a group are there."""
        return sum((pod.metadata.labels or {}).get(render.GROUP, "") == group.name for pod in self._there)


def _with_life(told: str, end: float) -> Finding:
    """Return the finding about a server that answers. end: of the credentials, in seconds since the epoch"""
    if math.isinf(end):
        return ok("api", told)
    left = end - time.time()
    at = time.strftime("%b %d %H:%M", time.localtime(end))
    if left < CREDENTIALS_END_S:
        hint = "log in again as your cluster wants it; after that time a lost host cannot be reached again"
        return warning("api", f"{told}; its credentials end at {at}", hint)
    return ok("api", f"{told}; credentials until {at}")
