"""A Jupyter kernel whose cells run on all ranks. Imported only where ipykernel is installed."""

from __future__ import annotations

import re
import sys

from ipykernel.iostream import OutStream
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

from mesh import __version__
from mesh.core.errors import MeshError
from mesh.program.prompt.cells import Cells
from mesh.program.prompt.notebook import Asked, Notebook, as_failure

WORD = re.compile(r"[\w.]*$")  # before the cursor


class MeshKernel(Kernel):  # type: ignore[misc]
    """Runs each cell of Jupyter on all ranks of one cluster. The first cell starts them."""

    implementation = "mesh"
    implementation_version = __version__
    banner = "mesh: each cell runs on all ranks; %help lists commands"
    language_info = {"name": "python", "mimetype": "text/x-python", "file_extension": ".py"}  # noqa: RUF012
    asked: Asked  # set before the start
    notebook: Notebook

    def set_parent(self, ident: object, parent: object, channel: str = "shell") -> None:
        """Take the request that comes next; what its cell prints belongs to it."""
        super().set_parent(ident, parent, channel)
        if channel == "shell":
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, OutStream):
                    stream.set_parent(parent)

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, str] | None = None,
        allow_stdin: bool = False,
        **more: object,
    ) -> dict[str, object]:
        """Run a cell, and return Jupyter's reply."""
        try:
            if code.strip():
                self.notebook.run(self.asked, code)
        except MeshError as error:
            failed = as_failure(error)
            content = {"ename": type(failed).__name__, "evalue": str(failed), "traceback": failed._render_traceback_()}
            self.send_response(self.iopub_socket, "error", content)
            return {"status": "error", "execution_count": self.execution_count, **content}
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    async def do_complete(self, code: str, cursor_pos: int) -> dict[str, object]:
        """Return the names on a rank that a word may become. A notebook without ranks has none."""
        found = WORD.search(code[:cursor_pos])
        word = found.group() if found else ""
        return {
            "status": "ok",
            "matches": list(self.notebook.complete(word)) if word else [],
            "cursor_start": cursor_pos - len(word),
            "cursor_end": cursor_pos,
            "metadata": {},
        }

    async def do_is_complete(self, code: str) -> dict[str, str]:
        """Return the answer for a console: run the lines, or wait for more."""
        cells = Cells(is_typed=True)
        for line in code.split("\n"):
            cells.feed(line)
        return {"status": "incomplete", "indent": ""} if cells.is_open else {"status": "complete"}

    async def do_shutdown(self, restart: bool) -> dict[str, object]:
        """End all ranks."""
        self.notebook.end_at_exit()
        return {"status": "ok", "restart": restart}


def serve(connection: str, asked: Asked) -> None:
    """Serve Jupyter until it ends the kernel. connection: the path of Jupyter's connection file"""
    MeshKernel.asked, MeshKernel.notebook = asked, Notebook({})
    MeshKernel.notebook.end_with_process()
    IPKernelApp.launch_instance(argv=["-f", connection], kernel_class=MeshKernel)
