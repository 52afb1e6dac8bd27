"""Locations of buckets, and zones of machines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

# cloud.google.com/storage/docs/locations
MULTI_REGIONS = {"us": ("us-",), "eu": ("europe-",), "asia": ("asia-",)}
DUAL_REGIONS = {
    "asia1": ("asia-northeast1", "asia-northeast2"),
    "eur4": ("europe-north1", "europe-west4"),
    "eur5": ("europe-west1", "europe-west2"),
    "eur7": ("europe-west2", "europe-west3"),
    "eur8": ("europe-west3", "europe-west6"),
    "nam4": ("us-central1", "us-east1"),
}


def region_of(zone: str) -> str:
    """Return the region of a zone.

    >>> region_of("us-east1-d")
    'us-east1'
    """
    return zone.rpartition("-")[0]


def is_near(location: str, regions: Sequence[str], zone: str) -> bool:
    """Return True if a bucket is in the region of a zone, or in a location that includes this region.

    location: of the bucket, as the API names it; regions: of a bucket in two regions that its owner has chosen

    >>> is_near("US-EAST1", (), "us-east1-d"), is_near("US-EAST1", (), "us-east5-b"), is_near("NAM4", (), "us-east1-d")
    (True, False, True)
    >>> is_near("US", (), "us-east1-d"), is_near("EU", (), "us-east1-d"), is_near("US", ("US-EAST1",), "us-west4-a")
    (True, False, False)
    """
    place, region = location.lower(), region_of(zone)
    if regions or place in DUAL_REGIONS:
        return region in DUAL_REGIONS.get(place, tuple(one.lower() for one in regions))
    if place in MULTI_REGIONS:
        return region.startswith(MULTI_REGIONS[place])
    return place == region
