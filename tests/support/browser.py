"""A Chromium without a screen, driven by its DevTools protocol: opens pages, and runs scripts in them."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.children import dies_with_us

WITHIN = 60.0
"""Seconds for a page to load, or a script to end."""


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One tab."""

    def __init__(self, tab: ClientConnection) -> None:
        self._tab = tab
        self._numbers = count(1)
        self._call("Page.enable")

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        number = next(self._numbers)
        self._tab.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (reply := json.loads(self._tab.recv(WITHIN))).get("id") != number:
            pass
        assert "error" not in reply, (method, reply["error"])
        result: dict[str, Any] = reply["result"]
        return result

    def resize(self, width: int, height: int = 800) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)

    def prefer(self, scheme: str) -> None:
        """Look at pages as a user who prefers "light" or "dark" colours."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Return once the page and its pictures have loaded."""
        result = self._call("Page.navigate", url=url)
        assert "errorText" not in result, (url, result)
        self.run(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', () => done()))"
        )

    def run(self, script: str) -> Any:
        """Return the value of an expression, or of its promise."""
        result = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def screenshot(self) -> str:
        """Return the whole page as a PNG in base64."""
        data: str = self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        return data


@contextmanager
def browser(chromium: str) -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(prefix="aiolocks-browser-", ignore_cleanup_errors=True) as folder:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command = [chromium, *options, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=dies_with_us()) as process:
            try:
                assert process.stderr is not None
                place = next(line for line in process.stderr if line.startswith("DevTools listening on ")).split()[-1]
                with connect(place, max_size=None) as whole:
                    whole.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
                    targets = json.loads(whole.recv(WITHIN))["result"]["targetInfos"]
                [page] = [target["targetId"] for target in targets if target["type"] == "page"]
                with connect(f"{place.rpartition('/devtools/')[0]}/devtools/page/{page}", max_size=None) as tab:
                    yield Browser(tab)
            finally:
                process.kill()


def axe() -> str | None:
    """Return the script that looks for barriers in a page, if it is installed."""
    try:
        import axe_core_python
    except ImportError:
        return None
    return Path(axe_core_python.__path__[0], "axe.min.js").read_text(encoding="utf-8")
