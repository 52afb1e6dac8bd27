"""The emulator's process: serves until SIGTERM, and writes `ready.json` once it can be used."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

from tests.tpuemulator.hosts import NO_HOSTS, DirectoryHosts, Hosts, LabHosts


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--lab", type=int, default=0, help="how many namespaces with sshd")
    parser.add_argument("--image", type=Path, help="a script for each of them to run before sshd starts")
    parser.add_argument("--hosts", type=Path, help="the root of a scripted world")
    given = parser.parse_args()
    signals: list[int] = []  # an Event has a lock, which the main thread may hold when its handler runs
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    hosts: Hosts = NO_HOSTS
    about: dict[str, object] = {}
    if given.lab:
        lab = LabHosts(given.lab, given.image)
        lab.begin()
        hosts = lab
        about |= {"identity": str(lab.lab.identity), "addresses": [host.address for host in lab.lab.hosts]}
    elif given.hosts:
        hosts = DirectoryHosts(given.hosts)

    from tests.tpuemulator.cloud import Cloud
    from tests.tpuemulator.service import Api, serve

    cloud = Cloud(given.directory, hosts)
    port, end = serve(Api(cloud))
    beside = given.directory / "ready.json.new"
    beside.write_text(json.dumps({"url": f"http://127.0.0.1:{port}/", **about}))
    beside.replace(given.directory / "ready.json")
    cloud.run(lambda: bool(signals))
    end()


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    main()
