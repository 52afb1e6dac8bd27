"""Comparison of the buckets that a job mounts with the zones of its machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mesh.app.bucket import EMULATOR, bucket_place
from mesh.core.errors import MeshError
from mesh.core.job import JobSpec
from mesh.core.module import Described, Gcsfuse
from mesh.core.regions import is_near

ANOTHER_CLOUD = "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"  # machines are requested elsewhere than from Google


def buckets_of(modules: Described) -> Iterator[str]:
    """Yield the buckets that modules mount."""
    for _, module in modules:
        if isinstance(module, Gcsfuse):
            yield from (bucket.name for bucket in module.buckets)


def about_buckets(spec: JobSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a notice for each bucket of a job that is in another region than its machines.

    Only for machines that are made, as hosts of a cluster have no zone. Without Google's client nothing is compared.
    """
    tpu = spec.machines.tpu
    names = tuple(dict.fromkeys(buckets_of(spec.modules or spec.project_modules)))
    if tpu is None or not names or (environ.get(ANOTHER_CLOUD) and not environ.get(EMULATOR)):
        return ()
    notices: list[str] = []
    for name in names:
        try:
            place = bucket_place(name, environ)
        except MeshError as error:
            if "need Google's client" not in str(error):
                notices.append(f"the region of its bucket was not compared with {', '.join(tpu.zones)} ({error})")
            continue
        far = [zone for zone in tpu.zones if not is_near(place.location, place.regions, zone)]
        if far:
            notices.append(far_words(name, place.location, far))
    return tuple(notices)


def far_words(bucket: str, location: str, zones: list[str]) -> str:
    """Return the warning about a bucket that is far from machines.

    >>> far_words("mine", "EU", ["us-east1-d"])
    'gs://mine is in EU, but the machines are in us-east1-d: reads are slow, and traffic between regions costs money'
    """
    return (
        f"gs://{bucket} is in {location}, but the machines are in {', '.join(zones)}: "
        "reads are slow, and traffic between regions costs money"
    )
