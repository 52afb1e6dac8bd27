"""Copies of files to a bucket of Google Cloud Storage, by Google's own client."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from mesh.core.errors import MeshError, UsageError
from mesh.core.installing import extra_line

SCHEME = "gs://"
EMULATOR = "STORAGE_EMULATOR_HOST"  # of Google's client: the address of another server
CALL_TIMEOUT_S = 60.0
PLACE_TIMEOUT_S = 5.0  # a submit does not wait for longer
BUCKET = re.compile(r"[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]")  # https://cloud.google.com/storage/docs/buckets#naming


class Blob(Protocol):
    def upload_from_string(self, data: bytes, *, content_type: str, timeout: float) -> None: ...


class Bucket(Protocol):
    location: str | None
    data_locations: Sequence[str] | None

    def reload(self, *, timeout: float, retry: None) -> None: ...
    def exists(self, *, timeout: float) -> bool: ...
    def blob(self, name: str) -> Blob: ...


class BucketPlace(Struct, frozen=True, kw_only=True):
    """The location of a bucket."""

    location: str  # a region, or a name for several, as the API has it
    regions: tuple[str, ...] = ()  # of a bucket in two regions that its owner has chosen


class NotCopied(MeshError):
    """Files that could not be copied to a bucket."""


def place_of(url: str) -> tuple[str, str]:
    """Return the bucket and the directory in it. Raises UsageError.

    >>> place_of("gs://my-bucket/a/b/"), place_of("gs://my-bucket")
    (('my-bucket', 'a/b'), ('my-bucket', ''))
    """
    name, _, directory = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not BUCKET.fullmatch(name):
        raise UsageError(f"expected gs://BUCKET/DIRECTORY, found {url!r}")
    return name, directory.strip("/")


def check_bucket(url: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError if the bucket is not there, and NotCopied if its service does not answer."""
    name, _ = place_of(url)
    try:
        is_there = _bucket(name, environ).exists(timeout=CALL_TIMEOUT_S)
    except MeshError:
        raise
    except Exception as error:  # of Google's client, its transport or its credentials: they share no class
        raise NotCopied(f"{url}: {_said(error)}", hint=f"gcloud storage ls {SCHEME}{name}") from error
    if not is_there:
        raise UsageError(f"there is no bucket {SCHEME}{name}", hint=f"gcloud storage buckets create {SCHEME}{name}")


def bucket_place(name: str, environ: Mapping[str, str] = os.environ) -> BucketPlace:
    """Return the location of a bucket. Raises MeshError if its service does not answer at once, or refuses."""
    bucket = _bucket(name, environ)
    try:
        bucket.reload(timeout=PLACE_TIMEOUT_S, retry=None)
    except Exception as error:  # of Google's client, its transport or its credentials: they share no class
        raise NotCopied(f"{SCHEME}{name}: {_said(error)}", hint=f"gcloud storage ls {SCHEME}{name}") from error
    return BucketPlace(location=bucket.location or "", regions=tuple(bucket.data_locations or ()))


def copy_to_bucket(files: Mapping[str, bytes], url: str, environ: Mapping[str, str] = os.environ) -> None:
    """Write objects below a place of a bucket. files: contents by name

    Raises NotCopied with the first that could not be written.
    """
    name, directory = place_of(url)
    try:
        bucket = _bucket(name, environ)
        for key, content in files.items():
            path = f"{directory}/{key}".lstrip("/")
            bucket.blob(path).upload_from_string(content, content_type="text/plain", timeout=CALL_TIMEOUT_S)
    except MeshError:
        raise
    except Exception as error:  # of Google's client, its transport or its credentials: they share no class
        raise NotCopied(f"{url}: {_said(error)}", hint=f"gcloud storage ls {SCHEME}{name}") from error


def _bucket(name: str, environ: Mapping[str, str]) -> Bucket:
    try:
        from google.cloud import storage
    except ImportError as error:
        raise NotCopied("buckets of Google Cloud need Google's client", hint=extra_line("gcs")) from error
    if environ.get(EMULATOR):
        client = storage.Client.create_anonymous_client()
    else:
        from mesh.hosts.tpu.client import credentials

        client = storage.Client(project="mesh", credentials=credentials(environ))
    found: Bucket = client.bucket(name)
    return found


def _said(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", "") or error).split())[:300] or type(error).__name__
