"""A headless Chromium, spoken to over its own protocol (CDP): opens a page, tells what it sees, and takes pictures."""

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

from tools.debian_package import debian_program

START_SECONDS_MAX = 60.0
ANSWER_SECONDS_MAX = 30.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Browser:
    """One page at a time in one browser.

    Attributes:
        requests: every address the page asked for.
        messages: what it wrote to its console, and errors of scripts.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._session = ""
        self._target = ""
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._events: dict[str, asyncio.Event] = {}
        self._listening = asyncio.create_task(self._listen())
        self.requests: list[str] = []
        self.messages: list[str] = []

    async def open_page(self) -> Self:
        """Makes a page, listens to it and forgets the one before."""
        self._session, before = "", self._target
        if before:
            await self.call("Target.closeTarget", targetId=before)
        self._target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self.requests.clear()
        self.messages.clear()
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        return self

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._number] = answer
        await self._socket.send_json(request)
        return await asyncio.wait_for(answer, ANSWER_SECONDS_MAX)

    async def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Sets the window and the scheme of colours."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)
        await self.until(f"innerWidth == {width} && matchMedia('(prefers-color-scheme: {scheme})').matches")

    async def visit(self, url: str) -> None:
        """Opens an address and waits until it has loaded."""
        loaded = self._events["Page.loadEventFired"] = asyncio.Event()
        await self.call("Page.navigate", url=url)
        await asyncio.wait_for(loaded.wait(), ANSWER_SECONDS_MAX)

    async def evaluate(self, expression: str) -> Any:
        """Value of an expression on the page; promises are awaited."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Waits until an expression holds on the page, which may be on its way to another address."""
        # No asyncio.timeout: until Python 3.12 `wait_for` swallows a cancellation that comes together with the answer.
        clock = asyncio.get_running_loop().time
        deadline = clock() + ANSWER_SECONDS_MAX
        holds = False
        while not holds:
            assert clock() < deadline, f"never on the page: {expression}"
            with suppress(AssertionError):  # the page that was asked is gone
                holds = await self.evaluate(f"Boolean({expression})")

    async def picture(self, path: Path) -> None:
        """Takes a picture of the whole page."""
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))

    async def close(self) -> None:
        """Stops listening."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        async for message in self._socket:
            body = json.loads(message.data)
            if "id" in body:
                answer = self._answers.pop(body["id"])
                if "error" in body:
                    answer.set_exception(AssertionError(body["error"]))
                else:
                    answer.set_result(body["result"])
                continue
            method, parameters = body["method"], body["params"]
            if body.get("sessionId") != self._session:
                continue  # of a page that is gone
            if method == "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            elif method == "Runtime.exceptionThrown":
                self.messages.append(json.dumps(parameters["exceptionDetails"]))
            elif method == "Log.entryAdded":
                self.messages.append(parameters["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                self.messages.append(json.dumps(parameters["args"]))
            if method in self._events:
                self._events[method].set()


@asynccontextmanager
async def browser(directory: Path) -> AsyncIterator[Browser]:
    """A browser with a profile of its own in a directory."""
    log = directory / "chromium.log"
    process = await asyncio.to_thread(_start, directory, log)
    try:
        url = await asyncio.wait_for(_debugger(process, log), START_SECONDS_MAX)
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
            opened = await Browser(socket).open_page()
            try:
                yield opened
            finally:
                await opened.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _start(directory: Path, log: Path) -> "subprocess.Popen[bytes]":
    program = debian_program("chromium", "usr/lib/chromium/chromium")
    environment = {**program.environment(), "HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    with log.open("wb") as output:
        return subprocess.Popen(
            [program.path, *FLAGS, f"--user-data-dir={directory / 'profile'}"],
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


async def _debugger(process: "subprocess.Popen[bytes]", log: Path) -> str:
    while True:
        said = await asyncio.to_thread(log.read_text, errors="replace")
        assert process.poll() is None, said
        found = re.search(r"DevTools listening on (ws://\S+)\n", said)
        if found:
            return found.group(1)
        await asyncio.sleep(0.05)
