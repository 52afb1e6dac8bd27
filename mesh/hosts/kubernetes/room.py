"""Room for pods: quantities, quotas and nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation

from mesh.backends.pods.objects import Node, Pod, Quota, Taint, Toleration

_SUFFIXES: Mapping[str, Decimal] = {
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate(("m", "u", "n"), 1)},
}
KEEPS_AWAY = ("NoSchedule", "NoExecute")  # effects of taints


def amount(text: str) -> Decimal:
    """Return a quantity of Kubernetes as a number. Raises ValueError.

    >>> amount("500m"), amount("64Gi"), amount("1e3"), amount("2E")
    (Decimal('0.500'), Decimal('68719476736'), Decimal('1E+3'), Decimal('2000000000000000000'))
    """
    suffix = next((one for one in _SUFFIXES if text.endswith(one)), "")
    try:
        found = Decimal(text.removesuffix(suffix)) * _SUFFIXES.get(suffix, Decimal(1))
    except InvalidOperation:
        raise ValueError(f"{text!r} is no quantity") from None
    if not found.is_finite():
        raise ValueError(f"{text!r} is no quantity")
    return found


def needs(pod: Pod, kind: str) -> dict[str, Decimal]:
    """Return the sums of what containers of a pod ask for. kind: "requests" or "limits" """
    found: dict[str, Decimal] = {}
    for container in pod.spec.containers:
        limits = container.resources.limits or {}
        own = limits if kind == "limits" else {**limits, **(container.resources.requests or {})}
        for name, text in own.items():
            found[name] = found.get(name, Decimal(0)) + amount(text)
    return found


def shortages(quotas: Sequence[Quota], wanted: Sequence[tuple[Pod, int]]) -> list[str]:
    """Return a line for each quantity of a quota that pods would exceed. wanted: pods, and how many like each

    A quota for some of the pods alone is left out: an admission answers for it.
    """
    found = []
    pods = sum(count for _, count in wanted)
    asked = [(needs(pod, "requests"), needs(pod, "limits"), count) for pod, count in wanted]
    for quota in quotas:
        if quota.spec.scopes or quota.spec.scope_selector:
            continue
        used = quota.status.used or {}
        for key, hard in (quota.status.hard or {}).items():
            need = sum((_each(key, requests, limits) * count for requests, limits, count in asked), Decimal(0))
            left = max(Decimal(0), amount(hard) - amount(used.get(key, "0")))
            if need > left:
                lead = f"quota {quota.metadata.name}: {pods} pods need {shown(need)} of {key}"
                found.append(f"{lead}, and {shown(left)} of {hard} are left")
    return found


def _each(key: str, requests: Mapping[str, Decimal], limits: Mapping[str, Decimal]) -> Decimal:
    """Return the amount of a quota's quantity that one pod needs."""
    if key in ("pods", "count/pods"):
        return Decimal(1)
    if key.startswith("limits."):
        return limits.get(key.removeprefix("limits."), Decimal(0))
    return requests.get(key.removeprefix("requests."), Decimal(0))


def shown(number: Decimal) -> str:
    """Return a number as a short quantity.

    >>> shown(amount("64Gi")), shown(amount("500m")), shown(amount("16")), shown(amount("2M"))
    ('64Gi', '500m', '16', '2000000')
    """
    for suffix in ("Ti", "Gi", "Mi"):
        if number >= _SUFFIXES[suffix] and number % _SUFFIXES[suffix] == 0:
            return f"{number / _SUFFIXES[suffix]:f}{suffix}"
    if number == number.to_integral_value():
        return f"{int(number)}"
    return f"{int(number * 1000)}m"


def unfit(node: Node, pod: Pod) -> str:
    """Return why a node could not hold a pod though it were empty; "" if it could."""
    if not any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ()):
        return "not Ready"
    if node.spec.unschedulable:
        return "cordoned"
    labels = node.metadata.labels or {}
    wanted = pod.spec.node_selector or {}
    if lacking := [f"{key}={value}" for key, value in wanted.items() if labels.get(key) != value]:
        return f"without label {', '.join(lacking)}"
    for taint in node.spec.taints or ():
        if taint.effect in KEEPS_AWAY and not any(_tolerates(one, taint) for one in pod.spec.tolerations or ()):
            return f"with taint {taint.key}"
    allocatable = node.status.allocatable or {}
    little = [name for name, number in needs(pod, "requests").items() if number > amount(allocatable.get(name, "0"))]
    return f"with too little {', '.join(sorted(little))}" if little else ""


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.key != "" and toleration.value == taint.value)


def fit_of(nodes: Sequence[Node], pod: Pod) -> tuple[int, str]:
    """Return how many nodes could hold a pod, and why the others could not."""
    reasons = [unfit(node, pod) for node in nodes]
    others = Counter(reason for reason in reasons if reason)
    return reasons.count(""), ", ".join(f"{count} {reason}" for reason, count in others.items())
