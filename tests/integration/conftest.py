"""Fixtures of the tests of jobs, and of those in a real cluster of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mesh.api.podshow import role_text
from tests.browser import LOOKS, Tab, browser
from tests.conftest import Home
from tests.desk import Desk, desk_of
from tests.kubecluster.cluster import USER, Cluster
from tests.tpu_desk import IMAGE
from tests.tpu_desk import tpu_desk as tpu_desk
from tests.tpu_desk import tpu_emulator as tpu_emulator
from tests.tpu_desk import tpu_user as tpu_user
from tests.tpu_desk import tpus as tpus
from tests.tpuemulator.client import Emulator, emulator


@pytest.fixture
def desk(home: Home) -> Iterator[Desk]:
    """A user without any job; nothing of the user's jobs is left afterwards."""
    with desk_of(home) as desk:
        yield desk


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    """A tab of a new browser."""
    with browser(tmp_path) as tab:
        tab.look(*LOOKS[0])
        yield tab


@pytest.fixture
def pod_desk(pod: Home) -> Iterator[Desk]:
    """The same with four hosts of their own."""
    with desk_of(pod) as desk:
        yield desk


@pytest.fixture(scope="session")
def session_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """The stand-in for the TPU API, with six hosts behind its addresses."""
    place = tmp_path_factory.mktemp("tpu")
    with emulator(place, "--lab", "6", "--image", str(place / IMAGE)) as found:
        yield found


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Cluster]:
    """A real cluster of Kubernetes, in which the user ``ana`` has the rights that mesh names, and no other one."""
    with Cluster() as cluster:
        cluster.allow(USER, yaml.safe_load(role_text(is_existing=False))["rules"])
        yield cluster


@pytest.fixture
def kube(home: Home, session_cluster: Cluster, nothing_is_left: None) -> Iterator[Cluster]:
    """The cluster without pods, and its kubeconfig in the home of the test's user."""
    session_cluster.write_kubeconfig(home.path, USER)
    yield session_cluster
    session_cluster.clear()
