"""The files of the pages, which are part of the package. No path is made from a request."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
# Addresses of pages, which all load the same file: its script shows the page.
PAGES = (
    "/",
    "/runs",
    "/compare",
    "/run/{run}",
    "/run/{run}/{part}",
    "/clusters",
    "/cluster/{name}",
    "/jobs",
    "/job/{job}",
    "/machines",
)


def file_routes() -> list[Route]:
    """Return a route for each page and each file."""
    found = Path(__file__).parent / "static"
    files = {one.name: one.read_bytes() for one in found.iterdir() if one.name.rpartition(".")[2] in TYPES}
    index = files.pop("index.html")

    async def page(request: Request) -> Response:
        return Response(index, media_type=TYPES["html"])

    async def file(request: Request) -> Response:
        name = request.url.path.removeprefix("/static/")
        return Response(files[name], media_type=TYPES[name.rpartition(".")[2]])

    return [*(Route(path, page) for path in PAGES), *(Route(f"/static/{name}", file) for name in files)]
