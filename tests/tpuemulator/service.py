"""The emulator's service: v2alpha1 by gRPC, the list of v2 by REST, and control by HTTP, all at one port."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.cloud import tpu_v2alpha1 as types
from google.longrunning import operations_pb2
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.tpuemulator.cloud import Cloud, Node, Queued, Refused
from tests.tpuemulator.faults import Faults

SERVICE = "google.cloud.tpu.v2alpha1.Tpu"
PREFACE = b"PRI "  # RFC 9113, 3.4: how HTTP/2, and so gRPC, begins
PROJECT = "lab"
STATUSES = {"NOT_FOUND": 404, "PERMISSION_DENIED": 403, "UNAUTHENTICATED": 401, "UNAVAILABLE": 503}


class Api:
    """The calls of the API over a cloud."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud, self.faults = cloud, Faults()
        self.holes: dict[str, str] = {}  # by verb: "unreachable"; or "half", which leaves out the second half
        self.page = 1000
        self.health: dict[str, str] = {}  # of nodes, by name
        self.future: dict[str, int] = {}  # states by name of a resource, as numbers that no client has words for

    # ---- v2alpha1

    def CreateNode(self, request: Any) -> Any:
        zone = self._zone(request.parent)
        fields = MessageToDict(types.Node.pb(request.node), preserving_proto_field_name=True)
        self.cloud.create_node(zone, request.node_id, fields, request.request_id)
        return operations_pb2.Operation(name=f"{request.parent}/operations/{request.request_id}")

    def CreateQueuedResource(self, request: Any) -> Any:
        zone = self._zone(request.parent)
        fields = MessageToDict(types.QueuedResource.pb(request.queued_resource), preserving_proto_field_name=True)
        self.cloud.create_request(zone, request.queued_resource_id, fields, request.request_id)
        return operations_pb2.Operation(name=f"{request.parent}/operations/{request.request_id}")

    def DeleteNode(self, request: Any) -> Any:
        zone, name = self._place(request.name)
        self.cloud.delete_node(zone, name)
        return operations_pb2.Operation(name=f"{request.name}/delete")

    def DeleteQueuedResource(self, request: Any) -> Any:
        zone, name = self._place(request.name)
        self.cloud.delete_request(zone, name, force=request.force)
        return operations_pb2.Operation(name=f"{request.name}/delete")

    def GetNode(self, request: Any) -> Any:
        return self._node(self._found(self.cloud.nodes, request.name))

    def GetQueuedResource(self, request: Any) -> Any:
        return self._queued(self._found(self.cloud.requests, request.name))

    def ListNodes(self, request: Any) -> Any:
        shown, token, holes = self._listed("ListNodes", "nodes", request)
        return types.ListNodesResponse(
            nodes=[self._node(one) for one in shown], next_page_token=token, unreachable=holes
        )

    def ListQueuedResources(self, request: Any) -> Any:
        shown, token, holes = self._listed("ListQueuedResources", "requests", request)
        queued = [self._queued(one) for one in shown]
        return types.ListQueuedResourcesResponse(queued_resources=queued, next_page_token=token, unreachable=holes)

    def _listed(self, verb: str, kind: str, request: Any) -> tuple[Sequence[Any], str, list[str]]:
        zone = self._zone(request.parent)
        every = self.cloud.shown(kind, zone)
        hole = self.holes.get(verb, "")
        if hole == "half":
            every = every[: len(every) // 2]
        begin, size = int(request.page_token or 0), min(self.page, request.page_size or 1000)
        token = str(begin + size) if begin + size < len(every) else ""
        return every[begin : begin + size], token, [request.parent] if hole else []

    def _zone(self, parent: str) -> str:
        head, _, zone = parent.rpartition("/locations/")
        if head != f"projects/{PROJECT}":
            raise Refused("PERMISSION_DENIED", f"Permission denied on {parent}")
        return zone

    def _place(self, name: str) -> tuple[str, str]:
        parent, _, _ = name.rpartition("/")
        return self._zone(parent.rpartition("/")[0]), name.rpartition("/")[2]

    def _found(self, there: Any, name: str) -> Any:
        found = there.get(self._place(name))
        if found is None:
            raise Refused("NOT_FOUND", f"Resource {name} was not found")
        return found

    def _node(self, node: Node) -> Any:
        made = types.Node.pb(types.Node())
        ParseDict(node.fields, made)
        made.name = f"projects/{PROJECT}/locations/{node.zone}/nodes/{node.name}"
        made.id, made.api_version = node.id, int(types.Node.ApiVersion.V2_ALPHA1)
        made.state = self.future.get(node.name) or int(types.Node.State[node.state])
        made.health = int(types.Node.Health[self.health.get(node.name, "HEALTHY")])
        made.create_time.FromSeconds(int(node.created))
        if node.request:
            made.queued_resource = f"projects/{PROJECT}/locations/{node.zone}/queuedResources/{node.request}"
        if node.state not in ("CREATING", "DELETING"):
            for address in node.addresses[: node.shown]:
                made.network_endpoints.add(ip_address=address, port=8470)
        return made

    def _queued(self, queued: Queued) -> Any:
        made = types.QueuedResource.pb(types.QueuedResource())
        ParseDict(queued.fields, made)
        made.name = f"projects/{PROJECT}/locations/{queued.zone}/queuedResources/{queued.name}"
        made.state.state = self.future.get(queued.name) or int(types.QueuedResourceState.State[queued.state])
        made.create_time.FromSeconds(int(queued.created))
        if queued.error:
            made.state.failed_data.error.message = queued.error
        return made

    # ---- control

    def control(self, action: str, words: dict[str, Any]) -> object:
        """Carry out what a test wants."""
        match action:
            case "set":
                with self.cloud.lock:
                    self.cloud.settings |= words
            case "faults":
                self.faults.set(words["faults"])
            case "holes":
                self.holes, self.page = words.get("holes", {}), words.get("page", 1000)
            case "future":
                self.future = words
            case "health":
                self.health = words
            case "preempt" | "lose_request" | "fail" | "replace_id" | "suspend":
                getattr(self.cloud, action)(**words)
            case "create_node" | "create_request":
                getattr(self.cloud, action)(**words)
            case "state":
                return self._state()
            case _:
                raise Refused("NOT_FOUND", action)
        return {}

    def _state(self) -> object:
        with self.cloud.lock:
            nodes = {
                f"{one.zone}/{one.name}": {"state": one.state, "id": one.id, "addresses": one.addresses}
                for one in self.cloud.nodes.values()
            }
            requests = {f"{one.zone}/{one.name}": {"state": one.state} for one in self.cloud.requests.values()}
        return {"nodes": nodes, "requests": requests, "counts": self.faults.counts}


def serve(api: Api) -> tuple[int, Callable[[], None]]:
    """Serve from threads; return the port, and the way to end."""
    server = grpc.server(ThreadPoolExecutor(32))
    verbs = {
        "CreateNode": (types.CreateNodeRequest, operations_pb2.Operation.SerializeToString),
        "CreateQueuedResource": (types.CreateQueuedResourceRequest, operations_pb2.Operation.SerializeToString),
        "DeleteNode": (types.DeleteNodeRequest, operations_pb2.Operation.SerializeToString),
        "DeleteQueuedResource": (types.DeleteQueuedResourceRequest, operations_pb2.Operation.SerializeToString),
        "GetNode": (types.GetNodeRequest, _serialized),
        "GetQueuedResource": (types.GetQueuedResourceRequest, _serialized),
        "ListNodes": (types.ListNodesRequest, types.ListNodesResponse.serialize),
        "ListQueuedResources": (types.ListQueuedResourcesRequest, types.ListQueuedResourcesResponse.serialize),
    }
    handlers = {
        verb: grpc.unary_unary_rpc_method_handler(_handler(api, verb), request.deserialize, answer)
        for verb, (request, answer) in verbs.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    web = ThreadingHTTPServer(("127.0.0.1", 0), _http(api))
    threading.Thread(target=web.serve_forever, daemon=True).start()
    door = socket.create_server(("127.0.0.1", 0), backlog=64)
    threading.Thread(target=_accept, args=(door, grpc_port, web.server_address[1]), daemon=True).start()

    def end() -> None:
        door.close()
        server.stop(0)
        web.shutdown()

    return door.getsockname()[1], end


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _handler(api: Api, verb: str) -> Callable[[Any, Any], Any]:
    def handle(request: Any, context: Any) -> Any:
        try:
            return api.faults.around(verb, lambda: getattr(api, verb)(request))
        except Refused as error:
            context.abort(grpc.StatusCode[error.status], str(error))

    return handle


def _http(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            version, _, resource = urlsplit(self.path).path.lstrip("/").partition("/")
            if version != "v2" or not resource.endswith("/nodes"):
                self._answer(404, "{}")
                return
            request = types.ListNodesRequest(parent=resource.removesuffix("/nodes"))
            try:
                answer = api.faults.around("ListNodes", lambda: api.ListNodes(request))
            except Refused as error:
                self._answer(STATUSES.get(error.status, 500), json.dumps({"error": {"message": str(error)}}))
                return
            told = MessageToDict(types.ListNodesResponse.pb(answer))
            for node in told.get("nodes", ()):  # fields that v2 does not have
                for name in ("autocheckpointEnabled", "bootDiskConfig", "upcomingMaintenance"):
                    node.pop(name, None)
            self._answer(200, json.dumps(told))

        def do_POST(self) -> None:
            words = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                self._answer(200, json.dumps(api.control(self.path.rpartition("/")[2], words)))
            except (Refused, KeyError, IndexError) as error:
                self._answer(400, json.dumps({"error": repr(error)}))

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    return Handler


def _accept(door: socket.socket, grpc_port: int, web_port: int) -> None:
    """Pass each connection on: gRPC to one port, all else to the other."""
    while True:
        try:
            sock, _ = door.accept()
        except OSError:
            return
        threading.Thread(target=_pass_on, args=(sock, grpc_port, web_port), daemon=True).start()


def _pass_on(sock: socket.socket, grpc_port: int, web_port: int) -> None:
    try:
        first = sock.recv(len(PREFACE), socket.MSG_PEEK)
        other = socket.create_connection(("127.0.0.1", grpc_port if first == PREFACE else web_port))
    except OSError:
        sock.close()
        return
    threading.Thread(target=_copy, args=(other, sock), daemon=True).start()
    _copy(sock, other)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for one in (source, target):
            one.close()
