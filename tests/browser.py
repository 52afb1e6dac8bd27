"""A real Chromium without a window, driven by its DevTools protocol: pages are looked at as their user sees them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import websocket

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE_S = 60.0
POLL_S = 0.05
PICTURES = os.environ.get("MESH_PICTURES", "")  # a directory for pictures of all pages
# Width, height and scheme of the windows in which pages are looked at.
LOOKS = [(1280, 900, "light"), (1280, 900, "dark"), (390, 844, "light"), (390, 844, "dark")]
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root, where Chromium has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


class Tab:
    """A tab of the browser."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=PATIENCE_S)
        self._number = 0
        self.requests: list[str] = []  # addresses that the page has asked for
        self.dialogs = 0
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Carry out a method of the protocol, and return its result."""
        self._number += 1
        number = self._number
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            message = json.loads(self._socket.recv())
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
        raise AssertionError(f"{method}: no answer")

    def _note(self, message: dict[str, Any]) -> None:
        method, found = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs += 1
            self._number += 1
            self._socket.send(
                json.dumps({"id": self._number, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}})
            )

    def open(self, address: str) -> None:
        """Go to an address; again if an interface of this machine came or went, as those of other tests do."""
        deadline = time.monotonic() + PATIENCE_S
        while self.call("Page.navigate", url=address).get("errorText") == "net::ERR_NETWORK_CHANGED":
            assert time.monotonic() < deadline, "the network does not stop changing"

    def value(self, expression: str) -> Any:
        """Return the value of an expression, or of its promise."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, within: float = PATIENCE_S) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + within
        while True:
            with contextlib.suppress(AssertionError):  # between two pages
                if found := self.value(f"(one => one instanceof Node ? true : one)({expression})"):
                    return found
            if time.monotonic() > deadline:
                shown = self.value("document.body && document.body.innerText")
                raise AssertionError(f"{expression} is not true on: {shown}")
            time.sleep(POLL_S)

    def text(self, selector: str) -> str:
        """Return the visible text of an element, "" if there is none."""
        found = self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return str(found)

    def wait_text(self, selector: str, part: str) -> str:
        """Wait until an element has a text in it."""
        self.wait(f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(part)})")
        return self.text(selector)

    def look(self, width: int, height: int, scheme: str) -> None:
        """Set the size of the page, and light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def violations(self, *rules: str) -> list[str]:
        """Return the rules of accessibility that the page breaks, by axe, each with the first element.

        rules: those to look for; without any, all
        """
        import axe_core_python

        if not self.value("'axe' in window"):
            program = os.environ.get("MESH_AXE") or Path(axe_core_python.__file__).with_name("axe.min.js")
            self.value(Path(program).read_text(encoding="utf-8") + "\n;0")
        options = json.dumps({"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})})
        found = self.value(f"axe.run(document, {options}).then(({{violations}}) => violations)")
        first = [(one["id"], one["nodes"][0]) for one in found]
        return [f"{rule}: {node['html'][:300]} {node.get('failureSummary')}" for rule, node in first]

    def look_everywhere(self, name: str) -> None:
        """Look at the page light and dark, wide and narrow: it is never wider than its window, and axe finds nothing.

        name: of the pictures that are made where MESH_PICTURES names a directory
        """
        for width, height, scheme in LOOKS:
            self.look(width, height, scheme)
            rules = ["color-contrast"] if scheme == "dark" else []  # nothing else depends on the scheme
            if width > 600:
                assert self.violations(*rules) == [], (name, scheme)
            wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            assert self.value(wide), (name, width)
            if PICTURES:
                self.picture(Path(PICTURES) / f"{name}-{width}-{scheme}.png")
        self.look(*LOOKS[0])

    def picture(self, path: Path) -> None:
        """Write a picture of the page."""
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def browser(directory: Path) -> Iterator[Tab]:
    """Yield a tab of a new browser, which has its files in a directory; nothing of it is left."""
    assert CHROMIUM
    profile = directory / "chromium"
    environ = {
        **os.environ,
        "HOME": str(directory),
        "XDG_CONFIG_HOME": str(directory),
        "XDG_CACHE_HOME": str(directory),
    }
    with (directory / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            start_new_session=True,
        )
    try:
        tab = Tab(_address(profile, process))
        try:
            yield tab
        finally:
            with contextlib.suppress(OSError, websocket.WebSocketException, AssertionError):
                tab.call("Browser.close")
            tab.close()
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10.0)


def _address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address of the first tab, once the browser answers."""
    import urllib.request

    file, deadline = profile / "DevToolsActivePort", time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, (profile.parent / "chromium.log").read_text()
        with contextlib.suppress(OSError, ValueError, IndexError):
            port = int(file.read_text().split()[0])
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5.0) as answer:
                tabs = [one for one in json.load(answer) if one["type"] == "page"]
            return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(POLL_S)
    raise AssertionError((profile.parent / "chromium.log").read_text())
