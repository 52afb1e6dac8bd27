"""Jobs that lose their machines while a bucket is mounted, with a checkpoint in it, before output is here, at the end.

The hosts behind the stand-in for the TPU API have sshd. The bucket is mounted by the stand-in for gcsfuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.error import HTTPError

import pytest

from tests.desk import Desk
from tests.gcs import PROGRAM, FakeGcs, missing
from tests.lab import eventually
from tests.tpu_desk import IMAGE, WITHIN_S, end_of, is_replaced_after, job_file, name_of, place_of
from tests.tpu_steward import HELD_FETCH
from tests.tpuemulator.client import Emulator

pytestmark = pytest.mark.root
BUCKET, CHECKPOINT, BEGUN = "kept", "step", "begun"
# In place of gcsfuse: it notes that it was started, and does not end.
HANGS = """#!/bin/sh
python3 -c 'import urllib.request as u; u.urlopen(u.Request("@url@", b"yes"))'
exec sleep 600
"""


@pytest.fixture
def desk(tpu_desk: Desk) -> Desk:
    return tpu_desk


@pytest.fixture
def bucket(tpus: Emulator) -> Iterator[FakeGcs]:
    """A bucket, which all machines reach."""
    with FakeGcs(f"{'.'.join(tpus.addresses[0].split('.')[:2])}.0.1") as server:
        server.bucket(BUCKET)
        yield server


def write_image(tpus: Emulator, text: str) -> None:
    """Have machines that boot from now on run a script before anybody can log in."""
    beside = tpus.directory / f"{IMAGE}.new"
    beside.write_text(text)
    beside.replace(tpus.directory / IMAGE)


def install(tpus: Emulator, program: str) -> None:
    """Have machines that boot from now on with a program called gcsfuse."""
    text = f"cat >{PROGRAM} <<'END'\n{program}\nEND\nchmod 755 {PROGRAM}\n"
    write_image(tpus, text)


# A machine locks the workspace of a job before it has a login. It writes an object once an agent waits for the lock.
LOCKS = """mkdir -p /root/.mesh/workspaces
setsid python3 - >/dev/null 2>&1 <<'END' &
import fcntl, os, time, urllib.request as u
mark = open("/root/.mesh/workspaces/.@workspace@.sync", "a")
fcntl.flock(mark, fcntl.LOCK_EX)
open("/run/is-locked", "w").close()
inode = f":{os.fstat(mark.fileno()).st_ino} "
while not any("->" in line and inode in line for line in open("/proc/locks")):
    time.sleep(0.1)
u.urlopen(u.Request("@url@", b"yes"))
time.sleep(600)
END
until [ -e /run/is-locked ]; do sleep 0.05; done
"""


def test_preempted_while_files_are_sent(
    desk: Desk,
    tpus: Emulator,
    bucket: FakeGcs,
) -> None:
    """The sync hangs on the first machine, and no rank starts there."""
    url = f"{bucket.url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={BEGUN}"
    tpus.set(hold=["WAITING_FOR_RESOURCES"])
    job = desk.submit(job_file("echo $MESH_ATTEMPT", "workspace: snapshot"))
    *_, store, number, _ = name_of(tpus).split("-")
    write_image(tpus, LOCKS.replace("@url@", url).replace("@workspace@", f"job-{store}-{number}"))
    tpus.set(hold=[])
    assert eventually(lambda: saved(bucket, BEGUN), WITHIN_S), desk.show(job)
    assert [row["state"] for row in desk.rows(job)] == ["preparing"]
    (tpus.directory / IMAGE).unlink()
    tpus.control("preempt", **place_of(tpus, "READY"), how="PREEMPTED")
    shown = end_of(desk, job)
    assert (shown["state"], shown["attempt"], shown["preemptions"], shown["failures"]) == ("succeeded", 1, 1, 0), shown
    assert is_replaced_after(tpus)
    assert desk.output(job).split() == [b"1"]


SAVES = """
step=$(cat /srv/kept/step 2>/dev/null || echo 0)
echo attempt $MESH_ATTEMPT goes on from $step
[ $step = 0 ] || exit 0
echo 7 >/srv/kept/step
sleep 300
"""


@pytest.mark.skipif(bool(missing()), reason=missing() or "nothing")
def test_preempted_while_a_bucket_is_mounted_and_once_it_has_a_checkpoint(
    desk: Desk,
    tpus: Emulator,
    bucket: FakeGcs,
) -> None:
    """The mount hangs on the first machines. The second ones are gone with all that they had but the bucket."""
    url = f"{bucket.url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={BEGUN}"
    install(tpus, HANGS.replace("@url@", url))
    mounted = f"gcsfuse: {{bucket_name: {BUCKET}, mount_path: /srv/kept}}"
    desk.home.files(save__sh=SAVES)
    job = desk.submit(job_file("sh save.sh", mounted, "setup: {modules: [gcsfuse]}", "workspace: snapshot"))
    assert eventually(lambda: saved(bucket, BEGUN), WITHIN_S), desk.show(job)
    assert [row["state"] for row in desk.rows(job)] == ["preparing"]
    install(tpus, bucket.program())
    tpus.control("preempt", **place_of(tpus, "READY"), how="PREEMPTED")
    assert eventually(lambda: saved(bucket) == "7\n", WITHIN_S), desk.show(job)
    desk.until(job, "running", within=WITHIN_S)
    tpus.control("preempt", **place_of(tpus, "READY", 2), how="PREEMPTED")
    shown = end_of(desk, job)
    assert (shown["state"], shown["attempt"], shown["preemptions"], shown["failures"]) == ("succeeded", 2, 2, 0), shown
    assert desk.output(job).endswith(b"attempt 2 goes on from 7\n")


def saved(bucket: FakeGcs, name: str = CHECKPOINT) -> str:
    """Return an object that the bucket has; "": none yet."""
    try:
        return bucket.read(BUCKET, name)
    except HTTPError:
        return ""


ENDLESS = "[ $MESH_ATTEMPT != 1 ] || exit 3; trap : TERM; while :; do sleep 0.2; done"


def test_preempted_while_logs_are_fetched_and_while_it_ends(desk: Desk, tpus: Emulator) -> None:
    """The first attempt fails, and its output is not fetched in time. The second one ignores SIGTERM."""
    held = desk.home.path / HELD_FETCH
    held.touch()
    text = job_file(ENDLESS).replace("on: preemption", "on: failure").replace("grace: 1", "grace: 600")
    job = desk.submit(text)
    assert eventually(held.read_text, WITHIN_S), desk.show(job)
    tpus.control("preempt", **place_of(tpus, "READY"), how="PREEMPTED")
    name_of(tpus, 2)
    held.unlink()
    shown = desk.until_row(job, lambda row: (row["state"], row["attempt"]) == ("running", 2), WITHIN_S)
    assert (shown["failures"], shown["preemptions"]) == (1, 0), shown
    assert desk.mesh("job", "stop", str(job)).status == 0
    desk.until(job, "ending", within=WITHIN_S)
    tpus.control("preempt", **place_of(tpus, "READY", 2), how="TERMINATED")
    shown = end_of(desk, job)
    assert (shown["state"], shown["attempt"], shown["failures"]) == ("stopped", 2, 1), shown
    assert is_replaced_after(tpus)
