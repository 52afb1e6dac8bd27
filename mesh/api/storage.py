"""Sizes of buckets of Google Cloud Storage: those that jobs name, or all of a project."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, cast

from msgspec import Struct

from mesh.api.jobsetup import job_of
from mesh.api.jobstore import JobStore
from mesh.api.regions import buckets_of, far_words
from mesh.core.errors import MeshError, UsageError
from mesh.core.installing import extra_line
from mesh.core.regions import is_near

SCHEME = "gs://"
PAGE_OBJECTS = 1000  # objects between two reports of the progress
EMULATOR = "STORAGE_EMULATOR_HOST"  # the address of a server that asks for no credentials, as the client library has it
Progress = Callable[[str, int], None]  # the bucket, and how many objects were counted so far


class BucketSize(Struct, frozen=True, kw_only=True):
    """The size of a bucket, or why it cannot be read."""

    bucket: str
    place: str = ""  # region, or regions, as the API names them
    objects: int = 0
    bytes: int = 0
    problem: str = ""
    far: tuple[str, ...] = ()  # warnings about jobs whose machines are in another region


class Blob(Protocol):
    """An object of a bucket, as the client library has it."""

    size: int | None


class StoredBucket(Protocol):
    """A bucket, as the client library has it."""

    name: str
    location: str | None
    data_locations: Sequence[str] | None


class Client(Protocol):
    """The part of the client library that is used here."""

    def list_buckets(self) -> Iterable[StoredBucket]: ...

    def get_bucket(self, name: str) -> StoredBucket: ...

    def list_blobs(self, name: str, *, fields: str) -> Iterable[Blob]: ...


class Mounting(Struct, frozen=True, kw_only=True):
    """A bucket that a job mounts, and the zones of its machines."""

    job: int
    bucket: str
    zones: tuple[str, ...]


def mountings() -> list[Mounting]:
    """Return the buckets that the jobs of the store mount, in the order of the jobs. Raises MeshError."""
    specs = ((row.id, job_of(row.id).spec) for row in JobStore().rows())
    return [
        Mounting(job=job, bucket=name, zones=spec.machines.tpu.zones if spec.machines.tpu else ())
        for job, spec in specs
        for name in buckets_of(spec.modules or spec.project_modules)
    ]


def storage(
    buckets: Sequence[str] = (), *, every: bool = False, progress: Progress = lambda bucket, count: None
) -> Iterator[BucketSize]:
    """Yield the size of each bucket: of those that are named, else of those that jobs mount.

    every: all buckets of gcloud's project, by name
    Raises UsageError without any bucket, and MeshError if the client library or credentials are not there.
    """
    client = _client()
    names = [name.removeprefix(SCHEME).partition("/")[0] for name in buckets]
    if every:
        names = sorted(bucket.name for bucket in _buckets(client))
    mounted = mountings()
    names = names or [one.bucket for one in mounted]
    if not names:
        raise UsageError("no job mounts a bucket", hint="mesh job storage gs://BUCKET, or mesh job storage --all")
    for name in dict.fromkeys(names):
        yield _size(client, name, progress, [one for one in mounted if one.bucket == name])


def _client() -> Client:
    """Return a client of the API. Raises MeshError."""
    try:
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import storage as library
    except ImportError as error:
        raise MeshError("google-cloud-storage is not installed", hint=extra_line("gcs")) from error
    try:
        if os.environ.get(EMULATOR):
            from google.auth.credentials import AnonymousCredentials

            project = os.environ.get("GOOGLE_CLOUD_PROJECT", "none")
            return cast(Client, library.Client(project=project, credentials=AnonymousCredentials()))
        return cast(Client, library.Client())
    except (GoogleAuthError, OSError) as error:
        raise MeshError(f"Google Cloud Storage: {error}", hint="gcloud auth application-default login") from error


def _buckets(client: Client) -> list[StoredBucket]:
    """Return all buckets of the project. Raises MeshError."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        return list(client.list_buckets())
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        raise MeshError(f"Google Cloud Storage: {error}", hint="gcloud auth application-default login") from error


def _size(client: Client, name: str, progress: Progress, mounted: Sequence[Mounting]) -> BucketSize:
    """Count the objects of a bucket. A bucket that cannot be read has its problem in the result.

    mounted: the jobs that mount it
    """
    from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound
    from google.auth.exceptions import GoogleAuthError

    count = size = 0
    try:
        bucket = client.get_bucket(name)
        for blob in client.list_blobs(name, fields="items(size),nextPageToken"):
            count, size = count + 1, size + (blob.size or 0)
            if count % PAGE_OBJECTS == 0:
                progress(name, count)
    except NotFound:
        return BucketSize(bucket=name, problem="there is no such bucket")
    except Forbidden:
        return BucketSize(bucket=name, problem="you may not read it")
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        return BucketSize(bucket=name, problem=str(error))
    place, regions = str(bucket.location or ""), tuple(bucket.data_locations or ())
    found = ((one.job, [zone for zone in one.zones if not is_near(place, regions, zone)]) for one in mounted)
    far = tuple(f"job {job}: {far_words(name, place, zones)}" for job, zones in found if zones)
    return BucketSize(bucket=name, place=place, objects=count, bytes=size, far=far)
