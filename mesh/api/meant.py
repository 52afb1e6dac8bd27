"""Word that stands for a run: an id, the beginning of one, "last", or a cluster."""

from __future__ import annotations

from mesh.api.choosing import cluster_file, clusters_named
from mesh.api.records import LAST, find_record, list_records
from mesh.core.errors import UsageError
from mesh.core.run import Kind


def clusters_meant(word: str, cluster: str, clusters_file: str) -> tuple[str, ...]:
    """Return the clusters that a word in the place of a run names, or nothing if it names a run.

    cluster: the cluster that was given apart; then the word is a run
    """
    if cluster or word == LAST or find_record(word):
        return ()
    try:
        return clusters_named(word, cluster_file(clusters_file))
    except UsageError:  # a run of this machine can be meant without a good cluster.yaml
        return ()


def run_meant(word: str, cluster: str, clusters_file: str) -> tuple[str, str]:
    """Return the run and the cluster that a word stands for.

    A cluster stands for the newest run that this machine has started there, else for the newest that its hosts keep.
    """
    if not clusters_meant(word, cluster, clusters_file):
        return word, cluster
    file = cluster_file(clusters_file)
    for record in list_records():
        is_there = record.cluster == word or word in clusters_named(record.cluster, file)
        if is_there and record.kind != Kind.SYNC.value:
            return record.run, ""
    return LAST, word
