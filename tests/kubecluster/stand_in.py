"""A stand-in for a cluster of Kubernetes: its API for pods and config maps, over hosts of the tests' lab.

It is no API server. It serves what mesh asks for, starts real processes on real hosts, and refuses as a cluster does,
so that mesh's own side is tested on machines where Kubernetes cannot be built.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.lab import Lab, TestHost

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
NAMESPACE = "team"
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
Object = dict[str, Any]


class Refused(Exception):
    """An answer that is none of success."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class StandIn:
    """The cluster; a context manager. Pods run on the lab's hosts, at most one on each."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.changed = threading.Condition()
        self.objects: dict[str, dict[str, Object]] = {"pods": {}, "configmaps": {}}
        self.hosts: dict[str, TestHost] = {}  # by pod
        self.processes: dict[str, subprocess.Popen[bytes]] = {}  # the first process of a pod
        self.changes: list[tuple[int, str, str, Object]] = []
        self.requests: list[str] = []
        self.refused: dict[str, Refused] = {}  # by "VERB resource", as "create pods"
        self.lists: dict[str, list[Object]] = {"events": [], "resourcequotas": [], "nodes": []}
        self.answers: dict[str, Object] = {}  # to requests about no object of the namespace, by path
        self.dead_images: dict[str, str] = {}  # why the pods of an image wait for ever
        self.connections: set[socket.socket] = set()
        self.is_down = False
        self._version = 0
        self._threads: list[threading.Thread] = []
        self._clearing = threading.Lock()  # to clear a host kills all processes there

    def __enter__(self) -> StandIn:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.cluster = self
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.05), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.objects["pods"]):
            self.remove("pods", name, grace=0.0)
        self._server.shutdown()
        self.cut()
        self._server.server_close()
        self._thread.join()
        for thread in self._threads:
            thread.join(10.0)

    def write_kubeconfig(self, home: Path) -> None:
        """Write ~/.kube/config."""
        file = home / ".kube/config"
        file.parent.mkdir(exist_ok=True)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stand-in",
            "clusters": [{"name": "c", "cluster": {"server": self.address}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "stand-in", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
        }
        file.write_text(json.dumps(config))

    def cut(self) -> None:
        """End all connections, as an API server does that is killed."""
        for one in list(self.connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    # ---- objects

    def make_pod(self, name: str, labels: dict[str, str], **more: Any) -> Object:
        """Make a pod that is there already when mesh comes."""
        spec = {"containers": [{"name": "main", "image": "test", "command": ["sleep", "86400"]}], **more}
        return self.add("pods", {"metadata": {"name": name, "labels": labels}, "spec": spec})

    def add(self, kind: str, thing: Object) -> Object:
        """Store an object; a pod begins to run where there is room."""
        with self.changed:
            meta = thing["metadata"]
            if meta["name"] in self.objects[kind]:
                raise Refused(409, f'{kind} "{meta["name"]}" already exists', "AlreadyExists")
            meta |= {
                "uid": str(uuid.uuid4()),
                "namespace": NAMESPACE,
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            if kind == "pods":
                thing["status"] = {"phase": "Pending"}
            self._store(kind, "ADDED", thing)
            if kind == "pods":
                self._schedule(thing)
            return thing

    def remove(self, kind: str, name: str, grace: float = 1.0) -> None:
        """Delete an object, and all that it owns."""
        with self.changed:
            thing = self.objects[kind].get(name)
            if thing is None:
                raise Refused(404, f'{kind} "{name}" not found', "NotFound")
            uid = thing["metadata"]["uid"]
            owned = [
                (other, one["metadata"]["name"])
                for other, listed in self.objects.items()
                for one in listed.values()
                if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences", ()))
            ]
            if kind == "pods" and name in self.processes and grace:
                thing["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self._store(kind, "MODIFIED", thing)
        for other, own in owned:
            with contextlib.suppress(Refused):
                self.remove(other, own)
        host = self.hosts.get(name)
        if kind == "pods" and host is not None and (process := self.processes.get(name)) is not None:
            if grace:
                self._signal_first(name)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(grace)
            with self.changed:
                if self.hosts.get(name) is host:  # else it was cleared, and may have another pod now
                    self._clear(host)
            process.wait()
        with self.changed:
            if self.objects[kind].pop(name, None) is not None:
                self.hosts.pop(name, None)
                self.processes.pop(name, None)
                self._store(kind, "DELETED", thing, keeps=False)

    def change_status(self, name: str, **status: Any) -> None:
        """Change the status of a pod."""
        with self.changed:
            thing = self.objects["pods"][name]
            thing["status"] = {**thing["status"], **status}
            self._store("pods", "MODIFIED", thing)

    def _store(self, kind: str, change: str, thing: Object, *, keeps: bool = True) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        if keeps:
            self.objects[kind][thing["metadata"]["name"]] = thing
        self.changes.append((self._version, kind, change, json.loads(json.dumps(thing))))
        self.changed.notify_all()

    def _schedule(self, pod: Object) -> None:
        name, image = pod["metadata"]["name"], pod["spec"]["containers"][0]["image"]
        container = pod["spec"]["containers"][0]["name"]
        free = [host for host in self.lab.hosts if host not in self.hosts.values()]
        if not free:
            message = "0/1 nodes are available: 1 Insufficient cpu."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            self.change_status(name, conditions=[condition])
            return
        self.hosts[name] = free[0]
        pod["spec"]["nodeName"] = free[0].name
        if image in self.dead_images:
            reason, _, message = self.dead_images[image].partition(": ")
            waiting = {"name": container, "image": image, "state": {"waiting": {"reason": reason, "message": message}}}
            self.change_status(name, containerStatuses=[waiting])
            return
        one = pod["spec"]["containers"][0]
        self.processes[name] = subprocess.Popen(
            self._argv(name, [*one.get("command", ()), *one.get("args", ())]), stdin=subprocess.DEVNULL
        )
        running = {"name": container, "image": image, "restartCount": 0, "state": {"running": {}}}
        self.change_status(name, phase="Running", podIP=free[0].address, containerStatuses=[running])
        thread = threading.Thread(target=self._wait, args=(pod, self.processes[name], free[0]), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _argv(self, name: str, words: list[str]) -> list[str]:
        """Return the command line of a program in a pod."""
        host, spec = self.hosts[name], self.objects["pods"][name]["spec"]
        environ = {"HOME": "/root", "PATH": PATH, "IN_POD": name}
        environ |= {one["name"]: str(one.get("value", "")) for one in spec["containers"][0].get("env", ())}
        enter = ["nsenter", "-t", str(host.pid), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--"]
        return [*enter, "env", "-i", *(f"{key}={value}" for key, value in environ.items()), *words]

    def _signal_first(self, name: str) -> None:
        process = self.processes[name]
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                os.kill(int(child), 15)

    def _clear(self, host: TestHost) -> None:
        """End all processes of a host, and remove the volume of its pod."""
        with self._clearing:
            self.lab.end_all(host)
            host.run("rm", "-rf", "/mesh")

    def _wait(self, pod: Object, process: subprocess.Popen[bytes], host: TestHost) -> None:
        """Wait until the first process of a pod has ended, which ends all others."""
        code, name = process.wait(), pod["metadata"]["name"]
        with self.changed:
            if self.objects["pods"].get(name) is not pod or self.hosts.get(name) is not host:
                return
            self._clear(host)
            ended = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
            status = {**pod["status"]["containerStatuses"][0], "state": ended}
            self.change_status(name, phase="Failed" if code else "Succeeded", containerStatuses=[status])
            del self.hosts[name]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # more than come at once
    cluster: StandIn

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the other end is gone


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.cluster.connections.add(self.connection)

    def finish(self) -> None:
        self.server.cluster.connections.discard(self.connection)
        super().finish()

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("list" if len(self._parts()) == 1 else "get")

    def do_POST(self) -> None:
        self._answer("create")

    def do_DELETE(self) -> None:
        self._answer("delete")

    def _parts(self) -> list[str]:
        path = urlsplit(self.path).path
        before = f"/api/v1/namespaces/{NAMESPACE}/"
        return path[len(before) :].split("/") if path.startswith(before) else [path]

    def _answer(self, verb: str) -> None:
        try:
            self._try(verb)
        except Refused as error:
            status = {"kind": "Status", "status": "Failure", "message": str(error), "reason": error.reason}
            self._send(error.status, {**status, "code": error.status})

    def _try(self, verb: str) -> None:
        cluster, parts = self.server.cluster, self._parts()
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else {}
        if verb == "list" and query.get("watch"):
            verb = "watch"
        if query.get("dryRun"):
            verb = "dry-run"
        resource = "/".join([parts[0], *parts[2:]])
        cluster.requests.append(f"{verb} {resource}")
        if cluster.is_down:
            self.close_connection = True
        elif (refused := cluster.refused.get(f"{verb} {resource}")) is not None:
            raise refused
        elif parts[0] == f"/api/v1/namespaces/{NAMESPACE}":
            self._send(200, {"metadata": {"name": NAMESPACE}})
        elif parts[0].startswith("/"):
            self._send(*self._of_cluster(verb, parts[0], body))
        elif parts[0] in cluster.lists:
            uid = query.get("fieldSelector", "").rpartition("=")[2]
            listed = [one for one in cluster.lists[parts[0]] if one.get("involvedObject", {}).get("uid", uid) == uid]
            self._send(200, {"items": listed})
        elif parts[0] not in cluster.objects:
            raise Refused(404, "the server could not find the requested resource", "NotFound")
        elif resource == "pods/exec":
            self._exec(parts[1])
        elif verb == "watch":
            self._watch(parts[0], query)
        else:
            self._send(*self._result(verb, parts, query, body))

    def _of_cluster(self, verb: str, path: str, body: Object) -> tuple[int, Object]:
        """Answer a request that is about no object of the namespace."""
        cluster = self.server.cluster
        if path in cluster.answers:
            return 200, cluster.answers[path]
        if path == "/version":
            return 200, {"gitVersion": "v1.20.2"}
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            return 201, {"status": {"allowed": f"{asked['verb']} {resource}" not in cluster.refused}}
        if path == "/api/v1/nodes":
            return 200, {"items": cluster.lists["nodes"]}
        words = path.split("/")
        if path.startswith("/api/v1/namespaces/") and len(words) > 5 and verb != "create":  # as a real server does
            return 200, {"items": []} if len(words) == 6 else self._absent("object", words[-1])
        return self._absent("namespaces", words[4] if len(words) > 4 else path)

    def _absent(self, kind: str, name: str) -> tuple[int, Object]:
        raise Refused(404, f'{kind} "{name}" not found', "NotFound")

    def _result(self, verb: str, parts: list[str], query: dict[str, str], body: Object) -> tuple[int, Object]:
        cluster, kind = self.server.cluster, parts[0]
        if verb == "create":
            return 201, cluster.add(kind, body)
        if verb == "dry-run":
            return 201, body
        if verb == "delete":
            cluster.remove(kind, parts[1], float(body.get("gracePeriodSeconds", 1)))
            return 200, {"kind": "Status", "status": "Success"}
        with cluster.changed:
            if verb == "get":
                if parts[1] not in cluster.objects[kind]:
                    raise Refused(404, f'{kind} "{parts[1]}" not found', "NotFound")
                return 200, cluster.objects[kind][parts[1]]
            items = [one for one in cluster.objects[kind].values() if _matches(one, query)]
            return 200, {"metadata": {"resourceVersion": str(cluster._version)}, "items": items}

    def _send(self, status: int, body: Object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, kind: str, query: dict[str, str]) -> None:
        cluster, seen = self.server.cluster, int(query.get("resourceVersion") or 0)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while self.connection.fileno() >= 0 and self.connection in cluster.connections:
            with cluster.changed:
                found = [one for one in cluster.changes if one[0] > seen and one[1] == kind]
                if not found:
                    cluster.changed.wait(0.2)
            for version, _, change, thing in found:
                seen = version
                if _matches(thing, query):
                    data = json.dumps({"type": change, "object": thing}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            if not found and not _is_open(self.connection):
                return

    def _exec(self, name: str) -> None:
        cluster = self.server.cluster
        process = cluster.processes.get(name)
        if name not in cluster.objects["pods"]:
            raise Refused(404, f'pods "{name}" not found', "NotFound")
        if process is None or process.poll() is not None:
            raise Refused(500, f"cannot exec into a container of pod {name}: it is not running")
        key = self.headers["Sec-WebSocket-Key"] + GUID
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        words = parse_qs(urlsplit(self.path).query, keep_blank_values=True)["command"]
        _Exec(self.connection, self.rfile).run(cluster._argv(name, words))


class _Exec:
    """A program on a host, whose streams are those of a websocket."""

    def __init__(self, connection: socket.socket, reader: Any) -> None:
        self._connection, self._reader = connection, reader
        self._lock = threading.Lock()

    def run(self, argv: list[str]) -> None:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        pumps = [
            threading.Thread(target=self._pump, args=(1, process.stdout), daemon=True),
            threading.Thread(target=self._pump, args=(2, process.stderr), daemon=True),
        ]
        feeder = threading.Thread(target=self._feed, args=(process,), daemon=True)
        for thread in (*pumps, feeder):
            thread.start()
        code = process.wait()
        for thread in pumps:
            thread.join()
        status: Object = {"status": "Success"}
        if code:
            cause = {"reason": "ExitCode", "message": str(code)}
            status = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
        self._send(3, json.dumps(status).encode())
        with contextlib.suppress(OSError):
            self._connection.sendall(b"\x88\x00")
            self._connection.shutdown(socket.SHUT_RDWR)
        feeder.join()
        process.stdin.close()

    def _pump(self, stream: int, pipe: Any) -> None:
        while data := pipe.read1(32768):
            self._send(stream, data)
        pipe.close()

    def _send(self, stream: int, data: bytes) -> None:
        size = len(data) + 1
        head = bytes((0x82, size)) if size < 126 else b"\x82\x7e" + size.to_bytes(2, "big")
        with self._lock, contextlib.suppress(OSError):
            self._connection.sendall(head + bytes((stream,)) + data)

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        """Pass on what the client sends; a client that is gone closes the program's standard input."""
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError, IndexError):
            while True:
                head = self._reader.read(2)
                size = head[1] & 0x7F
                if size > 125:
                    size = int.from_bytes(self._reader.read(2 if size == 126 else 8), "big")
                mask, data = self._reader.read(4), self._reader.read(size)
                if head[0] & 0x0F == 8:
                    break
                plain = bytes(one ^ mask[place % 4] for place, one in enumerate(data))
                if plain and plain[0] == 0:
                    process.stdin.write(plain[1:])
                    process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()


def _matches(thing: Object, query: dict[str, str]) -> bool:
    labels = thing["metadata"].get("labels", {})
    for part in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = part.partition("=")
        if labels.get(key) != value:
            return False
    return True


def _is_open(connection: socket.socket) -> bool:
    """Return False once the other end has closed the connection."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            connection.setblocking(True)
