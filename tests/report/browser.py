"""A headless Chromium, driven over its DevTools pipe with the standard library alone."""

import json
import os
import select
import shutil
import signal
import tempfile
import time
from base64 import b64decode
from pathlib import Path
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One tab. Everything that it asked the network for, and all that its console said, is remembered."""

    def __init__(self, width: int = 1100, height: int = 900, dark: bool = False) -> None:
        assert CHROMIUM is not None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        its_input, self._commands = os.pipe()
        self._answers, its_output = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, its_input, 3), (os.POSIX_SPAWN_DUP2, its_output, 4)]
        quiet = os.open(os.devnull, os.O_RDWR)
        actions += [(os.POSIX_SPAWN_DUP2, quiet, number) for number in (1, 2)]
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = os.posix_spawn(CHROMIUM, command, os.environ, file_actions=actions, setsid=True)
        for descriptor in (its_input, its_output, quiet):
            os.close(descriptor)
        self._buffer, self._number, self._session = b"", 0, None
        target = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.look(width, height, dark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        for descriptor in (self._commands, self._answers):
            os.close(descriptor)
        shutil.rmtree(self._profile, ignore_errors=True)

    def look(self, width: int, height: int, dark: bool = False) -> None:
        """The size of the window, and what the system prefers."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path) -> None:
        """Load a page and wait until its charts are drawn."""
        self.requests.clear()
        self._call("Page.navigate", url=page.as_uri())
        self.wait_for("document.readyState === 'complete' && !!document.documentElement.dataset.drawn")

    def value(self, expression: str) -> Any:
        """What an expression is on the page; an exception there is one here."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"].get("exception", found["exceptionDetails"]))
        return found["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not self.value(condition):
            assert time.monotonic() < end, f"waited {seconds} s for {condition}; the console said {self.complaints}"
            time.sleep(0.05)

    def point_at(self, x: float, y: float) -> None:
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def save_downloads_in(self, folder: Path) -> None:
        self._call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def screenshot(self, path: Path, whole: bool = False) -> None:
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(b64decode(shot["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": size | {"scale": 1}}

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _next(self, seconds: float = 60) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._answers], [], [], seconds)[0], "the browser does not answer"
            piece = os.read(self._answers, 1 << 20)
            assert piece, "the browser is gone"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
