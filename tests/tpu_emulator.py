"""A stand-in for the Cloud TPU API, made of the types of Google's own client: gRPC as the client speaks it, and REST as
gcloud does. Nothing here is Google's service: it tells of the nodes in a file, which a test writes.

    python -m tests.tpu_emulator STATE

STATE is JSON, read at each call: "nodes", and what is to go wrong. It prints the ports for gRPC and REST, and appends a
line to STATE.calls for each call.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

PROJECT, ZONE = "lab", "us-central2-b"
SERVICE = "google.cloud.tpu.v2.Tpu"


@dataclass
class Emulator:
    """A running one, as tests see it."""

    state: Path
    grpc: str  # URLs
    rest: str

    def tell(self, nodes: Sequence[Mapping[str, Any]], **wrong: object) -> None:
        """Have it tell of these nodes from now on.

        wrong: "page", how many nodes an answer has; "fail", the name of a status; "times", how many calls it hits;
        "hang", seconds before each answer; "unreachable", locations
        """
        beside = self.state.with_suffix(".new")
        beside.write_text(json.dumps({"nodes": nodes, **wrong}))
        beside.replace(self.state)  # a call that is under way reads all of it
        self.log.write_text("")

    @property
    def log(self) -> Path:
        return self.state.with_suffix(".calls")

    @property
    def calls(self) -> list[str]:
        """What it was asked since it was told something."""
        return self.log.read_text().split()

    def environ(self) -> dict[str, str]:
        """What has mesh ask it: gcloud's own way to name another endpoint."""
        return {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": self.rest,
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_COMPUTE_ZONE": ZONE,
        }


def node(name: str, addresses: Sequence[str], state: str = "READY", **more: object) -> dict[str, Any]:
    """A TPU whose machines have these addresses; more: "external", their other ones, "networks", "metadata"."""
    return {"name": name, "addresses": list(addresses), "state": state, **more}


@contextlib.contextmanager
def emulator(state: Path) -> Iterator[Emulator]:
    """One in a process of its own."""
    state.write_text('{"nodes": []}')
    argv = [sys.executable, "-m", "tests.tpu_emulator", str(state)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    try:
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        made = Emulator(state, *(f"http://127.0.0.1:{port}/" for port in ports))
        made.tell([])
        yield made
    finally:
        process.terminate()
        process.communicate()


def main(state: Path) -> None:
    """Serve until SIGTERM."""
    import grpc
    from google.cloud import tpu_v2

    api = _Api(state, tpu_v2)

    def handler(name: str, request: Any, answer: Any) -> Any:
        def serve(asked: Any, context: Any) -> Any:
            try:
                return getattr(api, name)(asked)
            except _Failure as failure:
                context.abort(grpc.StatusCode[failure.status], f"the emulator was told to fail: {failure.status}")

        return grpc.unary_unary_rpc_method_handler(serve, request.deserialize, answer.serialize)

    handlers = {
        "ListNodes": handler("ListNodes", tpu_v2.ListNodesRequest, tpu_v2.ListNodesResponse),
        "GetGuestAttributes": handler(
            "GetGuestAttributes", tpu_v2.GetGuestAttributesRequest, tpu_v2.GetGuestAttributesResponse
        ),
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    web = ThreadingHTTPServer(("127.0.0.1", 0), _rest(api, tpu_v2))
    threading.Thread(target=web.serve_forever, daemon=True).start()
    print(port, web.server_address[1], flush=True)
    server.wait_for_termination()


class _Failure(Exception):
    def __init__(self, status: str) -> None:
        self.status = status


class _Api:
    def __init__(self, state: Path, tpu_v2: Any) -> None:
        self._path, self._types = state, tpu_v2

    def _state(self, call: str) -> dict[str, Any]:
        with self._path.with_suffix(".calls").open("a") as log:
            log.write(f"{call}\n")
        state: dict[str, Any] = json.loads(self._path.read_text())
        time.sleep(state.get("hang", 0.0))
        calls = self._path.with_suffix(".calls").read_text().split()
        if "fail" in state and len(calls) <= state.get("times", sys.maxsize):
            raise _Failure(state["fail"])
        return state

    def ListNodes(self, request: Any) -> Any:
        state = self._state("ListNodes")
        if request.parent != f"projects/{PROJECT}/locations/{ZONE}":
            raise _Failure("NOT_FOUND")
        begin = int(request.page_token or 0)
        size = min(state.get("page", 1000), request.page_size or 1000)
        nodes = state["nodes"]
        return self._types.ListNodesResponse(
            nodes=[self._node(told) for told in nodes[begin : begin + size]],
            next_page_token=str(begin + size) if begin + size < len(nodes) else "",
            unreachable=state.get("unreachable", []),
        )

    def GetGuestAttributes(self, request: Any) -> Any:
        state = self._state("GetGuestAttributes")
        name = request.name.rpartition("/")[2]
        (told,) = [one for one in state["nodes"] if one["name"] == name]
        names = [f"t1v-{name}-w-{number}" for number in range(len(told["addresses"]))]
        items = [[{"namespace": "hostkeys", "key": "hostname", "value": name}] for name in names]
        return self._types.GetGuestAttributesResponse(
            guest_attributes=[{"query_value": {"items": item}} for item in items]
        )

    def _node(self, told: Mapping[str, Any]) -> Any:
        networks = told.get("networks", 1)
        external = told.get("external", [""] * len(told["addresses"]))
        endpoints = []
        for address, other in zip(told["addresses"], external, strict=True):
            endpoints.append({"ip_address": address, "port": 8470, "access_config": {"external_ip": other}})
            # The other networks of the same machine.
            endpoints += [{"ip_address": f"192.0.2.{n}", "port": 8470} for n in range(1, networks)]
        return self._types.Node(
            name=f"projects/{PROJECT}/locations/{ZONE}/nodes/{told['name']}",
            state=told["state"],
            id=zlib.crc32(told["name"].encode()),
            accelerator_type="v4-16",
            api_version="V2",
            network_endpoints=endpoints,
            network_configs=[{"network": f"net-{n}"} for n in range(networks)] if networks > 1 else [],
            metadata=told.get("metadata", {}),
        )


STATUSES = {
    "NOT_FOUND": 404,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "UNAUTHENTICATED": 401,
    "UNAVAILABLE": 503,
}


def _rest(api: _Api, tpu_v2: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            version, _, resource = url.path.lstrip("/").partition("/")
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            if version not in ("v2", "v2alpha1") or not resource.endswith("/nodes"):
                self._answer(404, "{}")
                return
            request = tpu_v2.ListNodesRequest(
                parent=resource.removesuffix("/nodes"),
                page_size=int(query.get("pageSize", 0)),
                page_token=query.get("pageToken", ""),
            )
            self._ask(api.ListNodes, request)

        def do_POST(self) -> None:
            name, _, method = urlsplit(self.path).path.removeprefix("/v2/").partition(":")
            self.rfile.read(int(self.headers["Content-Length"]))
            if method != "getGuestAttributes":
                self._answer(404, "{}")
                return
            self._ask(api.GetGuestAttributes, tpu_v2.GetGuestAttributesRequest(name=name))

        def _ask(self, call: Any, request: Any) -> None:
            try:
                answer = call(request)
            except _Failure as failure:
                message = f"the emulator was told to fail: {failure.status}"
                self._answer(STATUSES[failure.status], json.dumps({"error": {"message": message}}))
            else:
                self._answer(200, type(answer).to_json(answer, use_integers_for_enums=False))

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    return Handler


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    main(Path(sys.argv[1]))
