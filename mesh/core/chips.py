"""Chips of TPUs: how many an accelerator type has, and the quota that they are of."""

from __future__ import annotations

from mesh.core.tpu import TpuSpec

# Accelerator types of these kinds count cores: https://cloud.google.com/tpu/docs/v4 (and v2, v3, v5p).
CORES_PER_CHIP = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2}


def kind_of_accelerator(accelerator: str) -> str:
    """Return the kind of chip.

    >>> kind_of_accelerator("v6e-32"), kind_of_accelerator("v5litepod-16")
    ('v6e', 'v5litepod')
    """
    return accelerator.rpartition("-")[0] or accelerator


def chips_of(accelerator: str) -> int:
    """Return how many chips a slice has; 0 for a type without a number.

    >>> chips_of("v6e-32"), chips_of("v4-8"), chips_of("v5p-16"), chips_of("?")
    (32, 4, 8, 0)
    """
    number = accelerator.rpartition("-")[2]
    if not (number.isascii() and number.isdecimal()):
        return 0
    return max(1, int(number) // CORES_PER_CHIP.get(kind_of_accelerator(accelerator), 1))


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
