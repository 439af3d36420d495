"""Debian's Chromium, driven over its debugging pipe with nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

# Chromium reads orders from file 3 and answers on file 4; both may be taken by now.
_LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One headless Chromium with one tab; notes what the page logs and what it asks the network."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), CHROMIUM, *flags],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End the browser, also one that does not answer any more."""
        with suppress(AssertionError, OSError):
            self._session = None
            self.ask("Browser.close")
        os.close(self._in)
        os.close(self._out)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send an order and wait for its answer; what happens meanwhile is kept in `events`."""
        self._count += 1
        order: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            order["sessionId"] = self._session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._count:
                assert "error" not in message, message["error"]
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def _next(self, patience: float = 60.0) -> dict[str, Any]:
        end = time.monotonic() + patience
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            got = os.read(self._in, 1 << 20)
            assert got, "Chromium went away"
            self._buffer += got
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, path: Path, width: int, scheme: str, height: int = 900) -> None:
        """Show a file at a width, in a light or dark scheme, and wait until it is loaded."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, such as Enter, in what has the focus."""
        codes = {"Enter": ("\r", 13), "Tab": ("\t", 9)}
        text, code = codes[key]
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **({"text": text} if kind == "keyDown" else {}),
            )

    def logged(self) -> list[str]:
        """What the page wrote to the console, errors of the browser about it included."""
        said = []
        for event in self.events:
            if event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                said.append(json.dumps(event["params"]))
            elif event.get("method") == "Log.entryAdded":
                said.append(event["params"]["entry"]["text"])
        return said

    def requested(self) -> list[str]:
        """The addresses the page loaded from, contents inside the page aside."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
            and not event["params"]["request"]["url"].startswith("data:")
        ]

    def screenshot(self, path: Path, clip: tuple[float, float, float, float] | None = None) -> None:
        """The whole page as PNG, or a part of it (x, y, width, height)."""
        if clip is None:
            wide, high = self.value(
                "[document.documentElement.clientWidth, document.documentElement.scrollHeight]"
            )
            clip = (0, 0, wide, high)
        x, y, width, height = clip
        shot = self.ask(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={"x": x, "y": y, "width": width, "height": height, "scale": 1},
        )
        path.write_bytes(base64.b64decode(shot["data"]))
