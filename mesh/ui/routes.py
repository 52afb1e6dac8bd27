"""The answers below /api/: runs, jobs, machines and hosts, as JSON."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mesh.api.jobpages import job_page, jobs_page, machines_page
from mesh.core.errors import MeshError, UsageError
from mesh.core.events import Stream
from mesh.core.ranks import choose_ranks
from mesh.pages.differences import differences
from mesh.pages.fields import objects, text
from mesh.pages.lines import EVERYTHING, STREAMS, Choice
from mesh.pages.stackgroups import merged
from mesh.pages.verdicts import verdict_lines
from mesh.rundir.layout import RUN
from mesh.rundir.listing import record_as_json
from mesh.rundir.records import Record
from mesh.ui.actions import act
from mesh.ui.children import Answer
from mesh.ui.clusters import cluster_rows, known_cluster
from mesh.ui.encoding import as_json
from mesh.ui.pumps import HINT, report, words
from mesh.ui.state import State
from mesh.ui.streams import now_stream, run_stream

WINDOW_LINES_MAX = 2000
EXPRESSION_CHARACTERS_MAX = 1000
STREAM_NAMES = {"stdout": (Stream.STDOUT,), "stderr": (Stream.STDERR,), "prerun": (Stream.PRERUN,)}
T = TypeVar("T")
Answering = Callable[[Request], Awaitable[Response]]


class Json(Response):
    """JSON as browsers read it."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return as_json(content).encode()


class NotThere(MeshError):
    """The thing that a page asks for is gone, or never was."""


def answered(answer: Answering) -> Answering:
    """Turn the errors of an answer into JSON that a page shows in one line."""

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except NotThere as error:
            return _problem(404, error)
        except UsageError as error:
            return _problem(400, error)
        except MeshError as error:
            return _problem(409, error)
        except OSError as error:
            return _problem(404, MeshError(f"cannot be read: {error.strerror or error}"))
        except Exception as error:  # a page shows it in a line, as it does with all others
            report(error)
            return _problem(500, MeshError(words(error), hint=HINT))

    return guarded


def _problem(status: int, error: MeshError) -> Response:
    return Json({"error": str(error), "hint": error.hint}, status)


def _state(request: Request) -> State:
    state: State = request.app.state.mesh
    return state


def _record(request: Request) -> Record:
    """Return the run that a path names. Raises NotThere."""
    run: str = request.path_params["run"]
    record = _state(request).runs.record(run)
    if record is None:
        raise NotThere("this run is not on this machine, or was removed", hint="mesh runs --all")
    return record


def choice_of(request: Request, record: Record) -> Choice:
    """Return the part of the output that a request asks for. Raises UsageError."""
    query = request.query_params
    ranks = frozenset(choose_ranks("ranks", query["ranks"], record.placement)) if query.get("ranks") else None
    if host := query.get("host", ""):
        nodes = [node for node, one in enumerate(record.placement.hosts) if one.name == host]
        of_host = frozenset(rank for node in nodes for rank in record.placement.ranks(node))
        ranks = of_host if ranks is None else ranks & of_host
    try:
        if len(query.get("grep", "")) > EXPRESSION_CHARACTERS_MAX:
            raise ValueError(f"an expression has at most {EXPRESSION_CHARACTERS_MAX} characters")
        re.compile(query.get("grep", ""))
        since = float(query.get("since") or 0.0)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        raise UsageError(f"the filter is wrong: {error}") from error
    streams = STREAM_NAMES.get(query.get("stream", ""), STREAMS)
    return Choice(ranks=ranks, streams=streams, grep=query.get("grep", ""), since=since)


async def now(request: Request) -> Response:
    """Stream the cards of the runs that are on."""
    state = _state(request)
    return _stream(now_stream(state.pumps, state.cards))


def _stream(source: object) -> Response:
    return StreamingResponse(source, media_type="text/event-stream")  # type: ignore[arg-type]


async def runs(request: Request) -> Response:
    """Return runs as rows, the newest first; with ?count=N only so many."""
    state, count = _state(request), _whole(request, "count")
    if not count:
        return Json({"runs": await run_in_threadpool(state.runs.rows), "more": False})
    found = await run_in_threadpool(state.runs.newest, count)
    return Json({"runs": found, "more": len(found) == count})


async def run(request: Request) -> Response:
    """Return run.json as `mesh runs --json` prints it, with the verdict in lines and the names of the hosts."""
    record = await run_in_threadpool(_record, request)
    if not record.about:
        raise NotThere(f"{record.directory / RUN}: it is not there, or damaged", hint="mesh runs --all")
    fields = json.loads(await run_in_threadpool(record_as_json, record))
    placement = record.placement
    hosts = [placement.hosts[placement.node(rank)].name for rank in range(placement.world_size)]
    roles = [placement.role(rank) for rank in range(placement.world_size)]
    return Json({"record": fields, "verdict_lines": verdict_lines(record.about), "hosts": hosts, "roles": roles})


async def stream(request: Request) -> Response:
    """Stream the changes of a run; Last-Event-ID: where another stream has ended."""
    record = await run_in_threadpool(_record, request)
    last = request.headers.get("last-event-id", "")
    place = int(last) if last.isascii() and last.isdecimal() and len(last) < 16 else 0
    state = _state(request)
    return _stream(run_stream(state.views, state.pumps, record, place))


async def lines(request: Request) -> Response:
    """Return a window of the folded lines."""
    record = await run_in_threadpool(_record, request)
    choice = choice_of(request, record)
    first, count = _whole(request, "first"), min(_whole(request, "count", 200), WINDOW_LINES_MAX)

    def find() -> dict[str, object]:
        with _state(request).views.of(record, choice) as view:
            # The stream of the whole output looks by itself, and a first window must not wait for more.
            is_streamed = _state(request).pumps.has(f"run {record.run}")
            is_looked_at = is_streamed and choice == EVERYTHING and view.count()[0] > 0
            more = view.more if is_looked_at else view.look()
            total, is_complete = view.count()
            found: dict[str, object] = {"lines": total, "complete": is_complete, "folding": more}
            if (rank := _whole(request, "rank", -1)) >= 0:
                found["first_of"] = view.first_of(rank, first) if rank < record.placement.world_size else -1
            found["rows"] = [line.row() for line in view.window(first, count)]
            found["members"] = view.members(first) if count == 1 else []
            return found

    return Json(await run_in_threadpool(find))


def _whole(request: Request, name: str, otherwise: int = 0) -> int:
    value = request.query_params.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 12 else otherwise


async def timeline(request: Request) -> Response:
    """Return the bars of all hosts, and the stacks that events have."""
    record = await run_in_threadpool(_record, request)

    def find() -> dict[str, object]:
        with _state(request).views.of(record) as view, view.lock:
            while view.look() and not view.events:
                pass
            end = record.ended or time.time()
            bars = [bar.row() for bar in view.timeline.bars(end)]
            marks = [mark.row() for mark in view.timeline.marks]
            return {"bars": bars, "marks": marks, "hosts": list(record.hosts), "first": record.about.get("first")}

    return Json(await run_in_threadpool(find))


async def metrics(request: Request) -> Response:
    """Return the numbers in the lines of a run by step, as far as its output is read."""
    record = await run_in_threadpool(_record, request)
    return Json(await run_in_threadpool(_state(request).numbers.of, record))


async def stacks(request: Request) -> Response:
    """Return the stacks that the events of a run have; with ?now=1 ask its hosts, as `mesh stacks --json` does."""
    record = await run_in_threadpool(_record, request)
    if request.query_params.get("now") == "1":
        return _of_child(await _state(request).children.ask("stacks", "--json", record.run))

    def find() -> list[dict[str, object]]:
        with _state(request).views.of(record) as view, view.lock:
            view.look()
            taken = [one.fields for one in view.events if text(one.fields, "event") == "stacks"]
        groups = merged(group for fields in taken for group in objects(fields, "groups"))
        return [{"ranks": list(one.ranks), "head": one.head, "calls": list(one.calls)} for one in groups]

    return Json({"recorded": await run_in_threadpool(find)})


def _of_child(answer: Answer) -> Response:
    return Json({"status": answer.status, "found": answer.found, "error": answer.error})


async def compare(request: Request) -> Response:
    """Return the facts in which two runs differ."""
    state = _state(request)
    names = request.query_params.getlist("run")
    found = [record for name in names if (record := await run_in_threadpool(state.runs.record, name))]
    if len(found) != 2:
        raise NotThere("two runs of this machine are compared", hint="mesh diff RUN RUN")
    rows = await run_in_threadpool(differences, found[0], found[1])
    return Json({"differences": [[one.what, one.left, one.right] for one in rows]})


async def clusters(request: Request) -> Response:
    """Return all clusters with their hosts."""
    return Json({"clusters": await run_in_threadpool(cluster_rows)})


async def check(request: Request) -> Response:
    """Ask the hosts of a cluster, as `mesh check --json` does."""
    return _of_child(await _asked(request, "check", "--workspaces"))


async def top(request: Request) -> Response:
    """Ask the hosts of a cluster for their figures, as `mesh top --json` does."""
    answer = await _asked(request, "top")
    name = request.path_params["cluster"]
    history = _state(request).history.add(name, answer.found)
    return Json({"status": answer.status, "found": answer.found, "error": answer.error, "history": history})


async def _asked(request: Request, *words: str) -> Answer:
    name = request.path_params["cluster"]
    if not await run_in_threadpool(known_cluster, name):
        raise NotThere("there is no such cluster", hint="mesh clusters")
    return await _state(request).children.ask(*words, "--json", name)


async def jobs(request: Request) -> Response:
    """Return the jobs, their costs, and the steward."""
    return Json(await run_in_threadpool(jobs_page, request.query_params.get("all") == "1"))


async def job(request: Request) -> Response:
    """Return all about a job."""
    number: str = request.path_params["job"]
    if not (number.isascii() and number.isdecimal() and len(number) < 12):
        raise NotThere("there is no such job", hint="mesh job list --all")
    return Json(await run_in_threadpool(job_page, int(number)))


async def machines(request: Request) -> Response:
    """Return the machines of jobs; with ?audit=1 or ?quota=1 ask the cloud, as `mesh job audit --json` does."""
    for verb in ("audit", "quota"):
        if request.query_params.get(verb) == "1":
            return _of_child(await _state(request).children.ask("job", verb, "--json"))
    return Json(await run_in_threadpool(machines_page))


async def action(request: Request) -> Response:
    """Stop, signal or detach a run."""
    state = _state(request)
    if not state.has_actions:
        raise UsageError("this page is for reading", hint="mesh ui --actions")
    record = await run_in_threadpool(_record, request)
    body = await request.body()
    return _of_child(await act(state.children, record.run, request.path_params["verb"], body))


async def unknown(request: Request) -> Response:
    """Answer for an address that there is not."""
    raise NotThere("there is no such address")


async def about(request: Request) -> Response:
    """Return the facts of this server."""
    state = _state(request)
    return Json({"actions": state.has_actions, "version": state.version, "now": time.time()})


async def ps(request: Request) -> Response:
    """Ask the hosts of all clusters for their runs, as `mesh ps --json` does."""
    return _of_child(await _state(request).children.ask("ps", "--json"))


async def storage(request: Request) -> Response:
    """Ask for the sizes of the buckets that jobs mount, as `mesh job storage --json` does."""
    return _of_child(await _state(request).children.ask("job", "storage", "--json"))


_ANSWERS: dict[str, Answering] = {
    "about": about,
    "now": now,
    "runs": runs,
    "compare": compare,
    "runs/{run}": run,
    "runs/{run}/stream": stream,
    "runs/{run}/lines": lines,
    "runs/{run}/timeline": timeline,
    "runs/{run}/metrics": metrics,
    "runs/{run}/stacks": stacks,
    "clusters": clusters,
    "check/{cluster}": check,
    "top/{cluster}": top,
    "ps": ps,
    "jobs": jobs,
    "jobs/storage": storage,
    "jobs/{job}": job,
    "machines": machines,
}
ROUTES = [
    *(Route(f"/api/{path}", answered(answer), methods=["GET"]) for path, answer in _ANSWERS.items()),
    Route("/api/runs/{run}/{verb}", answered(action), methods=["POST"]),
    Route("/api/{path:path}", answered(unknown)),
]
