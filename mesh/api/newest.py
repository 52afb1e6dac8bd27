"""Newest attempt of a run that the scheduler of its hosts starts again."""

from __future__ import annotations

from mesh.api.records import find_record
from mesh.core.naming import LAST


def present_attempt(word: str, cluster: str, clusters_file: str) -> tuple[str, str]:
    """Return the attempt that is there now, or was the last one, and its cluster. Raises MeshError.

    word, cluster: as ``run_meant`` returns them, which is the answer for a run that its hosts do not start again
    """
    record = None if cluster and word == LAST else find_record(word)
    if record is None or not record.spec.retries:
        return word, cluster
    from mesh.api.slurmattempts import newest_attempt

    newest = newest_attempt(record.run, cluster or record.cluster, clusters_file)
    return (record.run, cluster) if newest == record.run else (newest, cluster or record.cluster)
