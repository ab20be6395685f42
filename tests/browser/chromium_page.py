"""A page in headless Chromium, driven by its DevTools protocol over a WebSocket."""

import asyncio
import base64
import itertools
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from pipeline.local.process_guard import die_with_parent
from tests.browser.chromium_files import ChromiumFiles

_SECONDS: Final = 120.0
"""A busy machine starts a browser in half a minute."""
_OPTIONS: Final = (
    "--headless=new", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip
_PROBLEMS: Final = (
    "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Audits.issueAdded",
)  # fmt: skip


class Page:
    """One page; `problems` has what its console, its security policy and its scripts reported, and
    `requested` every address that it asked for. No network answers, unless it is opened `online`.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self.requested: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._loaded = False

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol. Raises `AssertionError` if it fails."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    async def open(
        self, url: str, *, dark: bool = False, width: int = 1280, online: bool = False
    ) -> None:
        """Open an address, and wait until it is loaded."""
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            await self.call(f"{domain}.enable")
        if not online:
            bytes_per_second = {"downloadThroughput": 0, "uploadThroughput": 0}
            await self.call(
                "Network.emulateNetworkConditions", offline=True, latency=0, **bytes_per_second
            )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await self.call("Page.navigate", url=url)
        while not self._loaded:
            await self._receive()

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def becomes(self, expression: str) -> Any:
        """The value of a JavaScript expression, once it is true."""
        wait = f"""new Promise(done => {{ const look = () => {{
          const value = {expression}; value ? done(value) : setTimeout(look, 50) }}; look() }})"""
        answer = await self.call(
            "Runtime.evaluate", expression=wait, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def click(self, selector: str) -> None:
        """Click the first element, as a user does."""
        click = f"document.querySelector({selector!r}).click()"
        await self.call("Runtime.evaluate", expression=click, userGesture=True)

    async def press(self, key: str) -> None:
        """Press a key, named as in `KeyboardEvent.key`."""
        text = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def pdf(self) -> bytes:
        """The page as it prints."""
        answer = await self.call("Page.printToPDF", printBackground=False)
        return base64.b64decode(answer["data"])

    async def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json()
        method = message.get("method")
        if method in _PROBLEMS:
            self.problems.append(str(message["params"]))
        elif method == "Network.requestWillBeSent":
            self.requested.append(message["params"]["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True
        return message


@asynccontextmanager
async def chromium_page(files: ChromiumFiles) -> AsyncIterator[Page]:
    """A new page of a new Chromium, which ends with the block."""
    with _chromium(files) as (process, port):
        async with asyncio.timeout(_SECONDS), aiohttp.ClientSession() as session:
            address = await _address(process, port, session)
            async with session.ws_connect(address, max_msg_size=0) as socket:
                yield Page(socket)


@contextmanager
def _chromium(files: ChromiumFiles) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A running Chromium, and the file to which it writes its port."""
    with tempfile.TemporaryDirectory(
        prefix="springtide-chromium-", ignore_cleanup_errors=True
    ) as profile:
        options = [*_OPTIONS, f"--user-data-dir={profile}"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []  # root has none
        with subprocess.Popen(
            [files.program, *options, "about:blank"], env=files.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent,
        ) as process:  # fmt: skip
            try:
                yield process, Path(profile, "DevToolsActivePort")
            finally:
                process.kill()


async def _address(
    process: subprocess.Popen[bytes], port: Path, session: aiohttp.ClientSession
) -> str:
    """The address of the first page, once the browser has written its port."""
    while len(lines := _lines(port)) < 2:
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        await asyncio.sleep(0.05)
    async with session.get(f"http://127.0.0.1:{lines[0]}/json") as response:
        targets: list[dict[str, str]] = await response.json()
    return next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
