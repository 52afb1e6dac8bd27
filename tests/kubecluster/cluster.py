"""A real cluster of Kubernetes on one machine, for tests: a control plane, and two nodes with containerd and runc.

``with Cluster() as cluster`` brings it up in some 20 s. One is up at a time on a machine. As root on Linux only.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import secrets
import shutil
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.kubecluster import images, machines
from tests.kubecluster.build import cache_directory, programs
from tests.kubecluster.machines import NETWORK, SERVER, Machine
from tests.lab import LabError, eventually, sh

NAMESPACE = "team"
PORT, ETCD = 6443, f"http://{SERVER}:2379"
SERVER_NICE = -10
NODES = ("node-1", "node-2")
PREFIX = "mesh-kube-"  # of the directory
ADMIN, USER = "admin", "ana"
START_S = 180.0  # for all parts to come up, on a machine with much to do
Object = dict[str, Any]

CONTAINERD = """\
version = 2
root = "/run/images"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{directory}/cni"
"""
KUBELET: Object = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "makeIPTablesUtilChains": False,
    "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
    "imageGCHighThresholdPercent": 100,
    "imageGCLowThresholdPercent": 99,
    "nodeStatusUpdateFrequency": "1s",
    "nodeLeaseDurationSeconds": 8,
    "volumeStatsAggPeriod": "2s",  # of which a node evicts a pod whose volume is too full
    "healthzPort": 0,
    "maxPods": 60,
    "resolvConf": "",
    "serializeImagePulls": False,
    "kubeAPIQPS": 100,
    "kubeAPIBurst": 200,
    "eventRecordQPS": 0,
    "oomScoreAdj": 0,
}
CONTROLLERS = (
    "namespace,serviceaccount,serviceaccount-token,garbagecollector,nodelifecycle,resourcequota,podgc,job,replicaset,"
    "deployment,nodeipam,persistentvolume-binder,pvc-protection,pv-protection"
)
PLUGINS = next((place for place in ("/usr/lib/cni", "/opt/cni/bin") if Path(place).exists()), "/usr/lib/cni")


class Refused(Exception):
    """An answer of the API server that is none of success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Cluster:
    """The cluster; a context manager."""

    def __init__(self) -> None:
        self.tokens = {name: secrets.token_hex(16) for name in (ADMIN, USER)}
        self._pids: dict[str, int] = {}  # of programs, by "MACHINE/PROGRAM"

    def __enter__(self) -> Cluster:
        cache_directory().mkdir(parents=True, exist_ok=True)
        self._lock = (cache_directory() / "cluster.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):  # by a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.control = Machine("control", self.directory, is_node=False)
        self.nodes = [Machine(name, self.directory, is_node=True) for name in NODES]
        try:
            self._up()
        except BaseException:
            self._show_logs()
            self._down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._down()

    # ---- the API

    def ask(self, method: str, path: str, body: object = None, user: str = ADMIN, kind: str = "") -> Any:
        """Send a request to the API server; return the decoded answer. Raises Refused, and OSError if it is away."""
        context = ssl.create_default_context(cafile=str(self._certificate))
        connection = http.client.HTTPSConnection(SERVER, PORT, context=context, timeout=30.0)
        headers = {"Authorization": f"Bearer {self.tokens[user]}", "Content-Type": kind or "application/json"}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise Refused(answer.status, data.decode(errors="replace"))
        with contextlib.suppress(ValueError):
            return json.loads(data)
        return data.decode(errors="replace")

    def path(self, kind: str, name: str = "") -> str:
        """Return the path of objects of the tests' namespace."""
        return f"/api/v1/namespaces/{NAMESPACE}/{kind}" + f"/{name}" * bool(name)

    def listed(self, kind: str, labels: str = "") -> list[Object]:
        """Return the objects of a kind in the tests' namespace."""
        query = f"?labelSelector={labels}" if labels else ""
        items: list[Object] = self.ask("GET", self.path(kind) + query)["items"]
        return items

    def phases(self) -> dict[str, str]:
        """Return the phase of each pod."""
        return {one["metadata"]["name"]: one["status"].get("phase", "") for one in self.listed("pods")}

    def make_pod(self, name: str, labels: Mapping[str, str], node: str = "", **more: Any) -> None:
        """Create a pod with an image that has Python. node: where it runs; "": where the scheduler puts it"""
        container = {"name": "main", "image": images.PYTHON, **more.pop("container", {})}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 1, **more}
        if node:
            spec["nodeName"] = node
        meta = {"name": name, "labels": dict(labels)}
        self.ask("POST", self.path("pods"), {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def wait_for_pods(self, labels: str, count: int) -> None:
        """Wait until pods run."""

        def run() -> bool:
            found = self.listed("pods", labels)
            states = [one["status"].get("containerStatuses", [{}])[0].get("state", {}) for one in found]
            return len(found) == count and all("running" in one for one in states)

        assert eventually(run, START_S), self.listed("pods", labels)

    def clear(self) -> None:
        """Delete all pods, config maps and bindings of the tests' namespace, and wait until they are gone."""
        at_once = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        with contextlib.suppress(Refused):
            self.ask("DELETE", self.path("resourcequotas"))
        self.ask("DELETE", self.path("pods"), at_once)
        self.ask("DELETE", self.path("configmaps"))
        assert eventually(lambda: not self.listed("pods"), START_S), self.phases()
        assert eventually(lambda: not self.processes("mesh-"), START_S), self.processes("mesh-")

    def write_kubeconfig(self, home: Path, user: str = ADMIN) -> None:
        """Write ~/.kube/config of a user of the cluster."""
        file = home / ".kube/config"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(self._kubeconfig(user, str(self._certificate))))

    def allow(self, user: str, rules: Sequence[Object]) -> None:
        """Grant a user a Role of these rules, in place of the one before, and wait until the server goes by them."""
        group = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        meta = {"name": f"test-{user}"}
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": list(rules)}
        subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
        reference = {"kind": "Role", "name": meta["name"], "apiGroup": "rbac.authorization.k8s.io"}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "subjects": [subject],
            "roleRef": reference,
        }
        for kind, thing in (("roles", role), ("rolebindings", binding)):
            with contextlib.suppress(Refused):
                self.ask("DELETE", f"{group}/{kind}/{meta['name']}")
            self.ask("POST", f"{group}/{kind}", thing)
        wanted = [
            {"group": api, "resource": resource, "verb": verb}
            for rule in rules
            for api in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if "resourceNames" not in rule
        ]
        assert eventually(lambda: all(self._may(user, one) for one in wanted), START_S), wanted

    def _may(self, user: str, wanted: Mapping[str, str]) -> bool:
        """Return True if a user may do something in the tests' namespace. wanted: group, resource and verb"""
        resource, _, part = wanted["resource"].partition("/")
        asked = {**wanted, "namespace": NAMESPACE, "resource": resource, "subresource": part}
        body = {"spec": {"resourceAttributes": asked}}
        answer = self.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, user)
        return bool(answer["status"]["allowed"])

    # ---- what runs

    def processes(self, text: str) -> list[str]:
        """Return the command lines with a text of all processes in containers."""
        return list(self._found(text).values())

    def pids(self, text: str) -> list[int]:
        """Return the ids here of all processes in containers with a text in their command lines."""
        return list(self._found(text))

    def _found(self, text: str) -> dict[int, str]:
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"/{machines.CGROUP}/" in (entry / "cgroup").read_text():
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if text in words:
                        found[int(entry.name)] = words
        return found

    def kill(self, program: str, machine: str = "control") -> None:
        """Kill a program of a machine with SIGKILL: ``kube-apiserver``, ``kubelet`` and so on."""
        place = self.control if machine == "control" else self.nodes[NODES.index(machine)]
        place.kill(self._pids.pop(f"{machine}/{program}"))

    def start_api(self) -> None:
        """Start the API server. It answers some seconds later."""
        key, tokens = self.directory / "accounts.key", self.directory / "tokens.csv"
        options = {
            "etcd-servers": ETCD,
            "bind-address": SERVER,
            "advertise-address": SERVER,
            "secure-port": str(PORT),
            "cert-dir": str(self.directory / "server"),
            "service-cluster-ip-range": f"{NETWORK}.128.0/24",
            "authorization-mode": "RBAC",
            "token-auth-file": str(tokens),
            "service-account-issuer": "https://mesh.test",
            "service-account-signing-key-file": str(key),
            "service-account-key-file": str(key),
            "kubelet-preferred-address-types": "InternalIP",
            "default-not-ready-toleration-seconds": "5",
            "default-unreachable-toleration-seconds": "5",
            "profiling": "false",
        }
        self._begin(self.control, "kube-apiserver", options)

    def wait_for_api(self) -> None:
        """Wait until the API server is ready."""

        def is_ready() -> bool:
            with contextlib.suppress(OSError, Refused, http.client.HTTPException):
                return bool(self.ask("GET", "/readyz") == "ok")
            return False

        assert eventually(is_ready, START_S), self.control.log("kube-apiserver")

    def start_kubelet(self, number: int) -> None:
        """Start the kubelet of a node. Nodes are counted from 1."""
        node = self.nodes[number - 1]
        options = {
            "config": str(node.directory / "kubelet.json"),
            "kubeconfig": str(self.directory / "admin.json"),
            "root-dir": "/run/kubelet",
            "cert-dir": "/run/kubelet/pki",
            "hostname-override": node.name,
            "node-ip": machines.address(number),
            "container-runtime": "remote",
            "container-runtime-endpoint": "unix:///run/containerd.sock",
            "volume-plugin-dir": "/run/kubelet/plugins",
        }
        self._begin(node, "kubelet", options)

    # ---- up and down

    def _up(self) -> None:
        self._built = programs()
        machines.clear()
        self._write_files()
        machines.make_cgroups(NODES)
        for machine in (self.control, *self.nodes):
            machine.start()
        machines.connect(self.nodes)
        data = ["--data-dir", str(self.directory / "etcd"), "--listen-client-urls", ETCD]
        peers = [
            "--listen-peer-urls",
            f"http://{SERVER}:2380",
            "--initial-advertise-peer-urls",
            f"http://{SERVER}:2380",
        ]
        peers += ["--initial-cluster", f"default=http://{SERVER}:2380"]
        self.control.begin("etcd", ["etcd", *data, "--advertise-client-urls", ETCD, *peers])
        self.start_api()
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            runtimes = [pool.submit(self._start_runtime, node) for node in self.nodes]
            self.wait_for_api()
            (self.directory / "admin.json").write_text(json.dumps(self._kubeconfig(ADMIN, str(self._certificate))))
            self._start_controllers()
            for runtime in runtimes:
                runtime.result()
        for number in range(1, len(self.nodes) + 1):
            self.start_kubelet(number)
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        assert eventually(self.is_ready, START_S), self.ask("GET", "/api/v1/nodes")

    def is_ready(self) -> bool:
        """Return True once pods can run on all nodes."""
        nodes = self.ask("GET", "/api/v1/nodes")["items"]
        ready = [
            one
            for one in nodes
            if not one["spec"].get("taints")
            and any(c["type"] == "Ready" and c["status"] == "True" for c in one["status"].get("conditions", ()))
        ]
        accounts = self.ask("GET", self.path("serviceaccounts"))["items"]
        return len(ready) == len(self.nodes) and any(one.get("secrets") for one in accounts)

    def _down(self) -> None:
        for machine in (*self.nodes, self.control):
            machine.stop()
        machines.clear()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.close()

    def _show_logs(self) -> None:
        """Print the ends of all logs, for the report of the test that failed."""
        for log in sorted(self.directory.glob("*/*.log")):
            print(f"---- {log}\n{log.read_text(errors='replace')[-3000:]}")

    def _write_files(self) -> None:
        images.write_images(self.directory)
        key = self.directory / "accounts.key"
        sh("ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "", "-f", str(key))
        groups = {ADMIN: '"system:masters"', USER: '"people"'}
        lines = [f"{token},{name},{name},{groups[name]}\n" for name, token in self.tokens.items()]
        (self.directory / "tokens.csv").write_text("".join(lines))
        for number, node in enumerate(self.nodes, 1):
            (node.directory / "cni").mkdir()
            ranges = {"type": "host-local", "ranges": [[{"subnet": f"{NETWORK}.{number}.0/24"}]]}
            ranges |= {"routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/addresses"}
            bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ranges}
            network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
            (node.directory / "cni/10-pods.conflist").write_text(json.dumps(network))
            text = CONTAINERD.format(pause=images.PAUSE, plugins=PLUGINS, directory=node.directory)
            (node.directory / "containerd.toml").write_text(text)
            own = {**KUBELET, "cgroupRoot": f"/{machines.CGROUP}/{node.name}"}
            (node.directory / "kubelet.json").write_text(json.dumps(own))

    def _start_runtime(self, node: Machine) -> None:
        """Start containerd on a node and import the images."""
        node.begin("containerd", ["containerd", "--config", str(node.directory / "containerd.toml")])
        ctr = ("ctr", "--address", "/run/containerd.sock", "--namespace", "k8s.io")

        def answers() -> bool:
            with contextlib.suppress(LabError):
                node.run(*ctr, "version")
                return True
            return False

        if not eventually(answers, START_S):
            raise LabError(f"containerd of {node.name} does not answer: {node.log('containerd')}")
        for name in ("pause", "plain", "python"):
            node.run(*ctr, "images", "import", str(self.directory / f"{name}.tar"))

    def _start_controllers(self) -> None:
        shared = {"kubeconfig": str(self.directory / "admin.json"), "leader-elect": "false", "port": "0"}
        shared |= {"secure-port": "0", "profiling": "false"}
        options = {
            "controllers": CONTROLLERS,
            "service-account-private-key-file": str(self.directory / "accounts.key"),
            "root-ca-file": str(self._certificate),
            "node-monitor-period": "1s",
            "node-monitor-grace-period": "16s",
            "pod-eviction-timeout": "10s",
        }
        self._begin(self.control, "kube-scheduler", shared)
        self._begin(self.control, "kube-controller-manager", {**shared, **options})

    def _begin(self, machine: Machine, program: str, options: Mapping[str, str]) -> None:
        words = [str(self._built / program), *(f"--{name}={value}" for name, value in options.items())]
        # The server's own start is not to take longer because the tests load the machine.
        first = ["nice", "-n", str(SERVER_NICE)] if program == "kube-apiserver" else []
        self._pids[f"{machine.name}/{program}"] = machine.begin(program, [*first, *words])

    @property
    def _certificate(self) -> Path:
        return self.directory / "server/apiserver.crt"

    def _kubeconfig(self, user: str, certificate: str) -> Object:
        server = {"server": f"https://{SERVER}:{PORT}", "certificate-authority": certificate}
        context = {"cluster": "c", "user": user, "namespace": NAMESPACE}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "clusters": [{"name": "c", "cluster": server}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "real", "context": context}],
        }
