"""A real browser for tests: Chromium without a window, steered through the pipe of its own protocol.

Needs no package beyond Chromium itself. Keys and clicks are the browser's, as if a person made them.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
WITHOUT = "needs Chromium, which was not found; on Debian: make browser-test, or apt-get install chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)
SECONDS = 30.0
KEYS = {
    "Enter": 13,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Tab": 9,
    "PageUp": 33,
}

Json = dict[str, Any]


class Tab:
    """One page in the browser; remembers what it complained about and what it asked for."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> Json:
        """Send a command and return its result; events on the way are noted."""
        self._number += 1
        message: Json = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: Json = answer["result"]
                return result
            self._note(answer)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until an expression is true; return its value."""
        end = time.monotonic() + SECONDS
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"still not true: {script}; complaints: {self.complaints}"
            time.sleep(0.03)
        return value

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({selector!r}).innerText"))

    def click(self, selector: str) -> None:
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def _middle(self, selector: str) -> list[float]:
        """Scroll an element into view and return its middle, once it stays there: a page may be scrolling itself."""
        place = f"document.querySelector({selector!r})"
        script = (
            f"(() => {{ {place}.scrollIntoView({{block: 'center', behavior: 'instant'}}); const box = {place}"
            ".getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        before: list[float] = []
        while (middle := self.run(script)) != before:
            before = middle
            time.sleep(0.1)
        return before

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def give_file(self, selector: str, path: Path) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(shot["data"]))

    def _clip(self, whole: bool) -> Json:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _next(self) -> Json:
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        content: Json = json.loads(message)
        return content

    def _note(self, event: Json) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(str(details.get("exception", details).get("description", details)))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextmanager
def open_tab(folder: Path) -> Iterator[Tab]:
    """Start the browser with a fresh profile in `folder`, and end it."""
    assert CHROMIUM is not None, WITHOUT
    to_read, commands = os.pipe()
    answers, to_write = os.pipe()
    # The browser expects its two pipes at the numbers 3 and 4.
    redirect = f'exec "$@" 3<&{to_read} 4>&{to_write}'
    words = ["bash", "-c", redirect, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={folder}"]
    with subprocess.Popen(words, pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL) as process:
        os.close(to_read)
        os.close(to_write)
        try:
            tab = Tab(commands, answers)
            tab.attach()
            yield tab
        finally:
            os.close(commands)
            os.close(answers)
            process.terminate()
