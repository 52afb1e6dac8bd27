"""Chips of TPUs: how many an accelerator type has, and the quota that they are of."""

from __future__ import annotations

from mesh.core.tpu import TpuSpec, accelerator_of, kind_of


def kind_of_accelerator(accelerator: str) -> str:
    """Return the kind of chip.

    >>> kind_of_accelerator("v6e-32"), kind_of_accelerator("v5litepod-16")
    ('v6e', 'v5e')
    """
    return kind_of(accelerator)


def chips_of(accelerator: str) -> int:
    """Return how many chips a slice has; 0 for a type without a number.

    >>> chips_of("v6e-32"), chips_of("v4-8"), chips_of("v5p-16"), chips_of("?")
    (32, 4, 8, 0)
    """
    return accelerator_of(accelerator).chips


def chips_of_request(tpu: TpuSpec) -> int:
    """Return how many chips all slices have."""
    return chips_of(tpu.accelerator) * tpu.slices


def quota_pool(kind: str, zone: str, pricing: str) -> str:
    """Return the name of a quota.

    >>> quota_pool("v6e", "us-east1-d", "spot")
    'v6e/us-east1-d/spot'
    """
    return f"{kind}/{zone}/{pricing}"


def pool_of_request(tpu: TpuSpec) -> str:
    """Return the quota that a request waits for; that of several zones counts for all of them together."""
    return quota_pool(kind_of_accelerator(tpu.accelerator), "+".join(tpu.zones), tpu.pricing.value)
