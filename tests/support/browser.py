"""A real Chromium, driven by its own driver over the W3C protocol: the few calls here need no client library."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.stack import free_port, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
NEEDS_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (Debian: chromium-driver)"),
]
_FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]

# Behind a dialog nobody reaches anything, nor in what is inert.
_PRESS = """
const reach = document.querySelector("dialog[open]") ?? document;
const one = [...reach.querySelectorAll("button, a, summary")].find((item) =>
  item.textContent.trim() === arguments[0] && item.checkVisibility() && !item.disabled && !item.closest("[inert]"));
if (one) one.click();
return Boolean(one);
"""
_PRESS_LABELLED = """
const reach = document.querySelector("dialog[open]") ?? document;
const one = [...reach.querySelectorAll("button")].find((item) =>
  item.ariaLabel === arguments[0] && item.checkVisibility() && !item.disabled && !item.closest("[inert]"));
if (one) one.click();
return Boolean(one);
"""
_FILL = """
const wanted = arguments[0];
const isWanted = (item) => item.ariaLabel === wanted || item.labels?.[0]?.childNodes[0].textContent.trim() === wanted;
const reach = document.querySelector("dialog[open]") ?? document;
const one = [...reach.querySelectorAll("input, select, textarea")].find((item) =>
  item.checkVisibility() && !item.disabled && !item.closest("[inert]") && isWanted(item));
if (!one) return false;
one.focus();
if (one.type === "checkbox") one.checked = arguments[1] !== "";
else one.value = arguments[1];
for (const event of ["input", "change"]) one.dispatchEvent(new Event(event, { bubbles: true }));
return true;
"""

_VALUE = """
const isWanted = (item) => item.ariaLabel === arguments[0]
  || item.labels?.[0]?.childNodes[0].textContent.trim() === arguments[0];
return [...document.querySelectorAll("input, select, textarea")].find((item) => isWanted(item))?.value;
"""


class Browser:
    """One tab."""

    def __init__(self, url: str) -> None:
        self._url = url
        options = {"binary": CHROMIUM, "args": _FLAGS}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        self._session = f"{url}/session/{self._post(url + '/session', {'capabilities': wanted})['sessionId']}"

    def _post(self, url: str, body: dict[str, Any]) -> Any:
        request = Request(url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=PATIENCE_S) as response:
                return json.loads(response.read())["value"]
        except HTTPError as error:
            with error:
                raise AssertionError(json.loads(error.read())["value"]["message"]) from error

    def close(self) -> None:
        with urlopen(Request(self._session, method="DELETE"), timeout=PATIENCE_S):
            pass

    def cdp(self, command: str, **parameters: Any) -> Any:
        return self._post(f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Be a screen of this size, and like light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        self._post(f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function; its `arguments` are there by this name."""
        return self._post(f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script: str, *arguments: Any, seconds: float = PATIENCE_S) -> Any:
        """Wait until the script returns something true; return that."""
        deadline = time.monotonic() + seconds
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < deadline, f"not within {seconds} s: {script} {arguments}; {self.text()[:2000]}"
            time.sleep(0.05)
        return found

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def sees(self, text: str, seconds: float = PATIENCE_S) -> None:
        """Wait until the page shows `text`."""
        self.until("return document.body.innerText.includes(arguments[0])", text, seconds=seconds)

    def press(self, label: str) -> None:
        """Press the visible button or link of this label."""
        self.until(_PRESS, label)

    def press_labelled(self, label: str) -> None:
        """Press the visible button whose accessible name is this, where that is not what it shows."""
        self.until(_PRESS_LABELLED, label)

    def fill(self, label: str, value: str) -> None:
        """Type into the field of this label, as a person does: listeners for input and change receive their events."""
        self.until(_FILL, label, value)

    def value(self, label: str) -> str:
        """What is in the field of this label."""
        return str(self.until(_VALUE, label))

    def complaints(self) -> list[str]:
        """What the browser's console logged: faults of scripts, and what the security policy refused, not calls."""
        found = self._post(f"{self._session}/se/log", {"type": "browser"})
        return [item["message"] for item in found if item["level"] == "SEVERE" and item["source"] != "network"]


@contextmanager
def running_browser() -> Iterator[Browser]:
    assert DRIVER is not None
    port = free_port()
    process = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL)
    try:
        started: list[Browser] = []

        def starts() -> bool:
            with suppress(OSError):
                started.append(Browser(f"http://127.0.0.1:{port}"))
            return bool(started)

        until(starts)
        [browser] = started
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
