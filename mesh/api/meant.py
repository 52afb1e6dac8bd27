"""Word that stands for a run: an id, a name, a tag, a part of the first two, "last", or a cluster."""

from __future__ import annotations

import os
import re

from mesh.api.choosing import cluster_file, clusters_named
from mesh.api.records import find_record, list_records
from mesh.core.errors import UsageError
from mesh.core.naming import LAST, RUN_ID
from mesh.core.paths import job_directory
from mesh.rundir.records import Record

_JOB = re.compile(r"(job:([0-9]{1,9}))(:.*)?")


def clusters_meant(word: str, cluster: str, clusters_file: str) -> tuple[str, ...]:
    """Return the clusters that a word in the place of a run names, or nothing if it names a run.

    The whole id or name of a run wins over a cluster, and a cluster over a tag or a part of an id or name.
    cluster: the cluster that was given apart; then the word is a run
    """
    if cluster or word == LAST or find_record(word, is_exact=True):
        return ()
    try:
        return clusters_named(word, cluster_file(clusters_file))
    except UsageError:  # a run of this machine can be meant without a good cluster.yaml
        return ()


def run_of_job(word: str) -> tuple[str, str]:
    """Return the newest run of the job that a word means, and the cluster that the job is; ("", "") without any.

    Its hosts may have other runs as well, which are not meant.
    """
    found = _JOB.fullmatch(word)
    if not found:
        return "", ""
    attempts = job_directory(os.environ, int(found[2])) / "attempts"
    try:
        newest = max((name for name in os.listdir(attempts) if name.isdecimal()), key=int, default="")
        run = os.path.basename(os.readlink(attempts / newest)) if newest else ""
    except OSError:
        return "", ""
    return (run, found[1]) if RUN_ID.fullmatch(run) else ("", "")


def run_of(word: str, clusters_file: str) -> Record | None:
    """Return the run of this machine that a word in the place of a cluster means; None if it names a cluster."""
    if not word or clusters_named(word, cluster_file(clusters_file)):
        return None
    return find_record(word)


def run_meant(word: str, cluster: str, clusters_file: str) -> tuple[str, str]:
    """Return the run and the cluster that a word stands for.

    A cluster stands for the newest run that this machine has started there, else for the newest that its hosts keep;
    a job for its newest run.
    """
    own, its = run_of_job(word) if not cluster else ("", "")
    if own:
        return own, its
    if not clusters_meant(word, cluster, clusters_file):
        return word, cluster
    file = cluster_file(clusters_file)
    for record in list_records():
        is_there = record.cluster == word or word in clusters_named(record.cluster, file)
        if is_there and record.counts_as_last:
            return record.run, ""
    return LAST, word
