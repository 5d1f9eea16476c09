"""The HTTP ports: /metrics, /healthz, /readyz, and the status page. They only answer: nothing can be changed through them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from coordinator.listening import bind_socket
from coordinator.logging import get_logger
from coordinator.web.page import StatusPage
from datacoord.transport import is_loopback

READY_TIMEOUT_SECONDS: Final = 2.0
"""A database that takes longer than this to answer nothing is not one to send calls to."""

_log = get_logger("web")


def only_names(names: Sequence[str]) -> Middleware:
    """Refuses who asks for this machine by a name that is not ours.

    A page on the internet may let its own name point at 127.0.0.1, and then read what a browser on this machine may read (DNS
    rebinding). The browser goes on sending that name.

    Args:
        names: ours, besides localhost and the addresses of loopback.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            name = urlsplit(f"//{request.host}").hostname or ""
        except ValueError:
            name = ""
        if not is_loopback(name) and name not in names:
            text = (
                "this port does not answer to the name it was asked by; the setting page_names says to which it does\n"
            )
            return web.Response(status=421, text=text)
        return await handler(request)

    return check


class Listener:
    """One HTTP port. On loopback it answers to names of loopback only.

    Args:
        setting: the setting that names it, for what is said when it is taken.
        names: that it answers to besides; where there are some, on other addresses, too, it answers to no others.
    """

    def __init__(self, setting: str, names: Sequence[str] = ()) -> None:
        self._setting = setting
        self._names = names
        self._runner: web.AppRunner | None = None

    async def start(self, app: web.Application, host: str, port: int) -> int:
        """Listens; returns the port (chosen by the system if 0 was given).

        Raises:
            PortInUseError: somebody else listens there.
            ConfigInvalidError: the address is not one of this machine.
        """
        listener = bind_socket(host, port, setting=self._setting)
        if self._names or is_loopback(host):
            app.middlewares.append(only_names(self._names))
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        bound: int = listener.getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Closes the port."""
        if self._runner is not None:
            await self._runner.cleanup()


class WebServer:
    """The HTTP port of one coordinator for metrics and health.

    Args:
        registry: the metrics to serve.
        refresh: brings them up to date; called before they are served.
        ping: answers when the database does, raises when it does not.
        page: the status page, to serve it beside them; None = it has a port of its own, or there is none.
        names: see Listener.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        refresh: Callable[[], None],
        ping: Callable[[], Awaitable[None]],
        page: StatusPage | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self._registry = registry
        self._refresh = refresh
        self._ping = ping
        self._page = page
        self._draining = False
        self._listener = Listener("web_port", names)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port (chosen by the system if 0 was given).

        Raises:
            PortInUseError: somebody else listens there.
            ConfigInvalidError: the address is not one of this machine.
        """
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        if self._page is not None:
            self._page.add_to(app)
        return await self._listener.start(app, host, port)

    def drain(self) -> None:
        """From now on /readyz says no, so that load balancers look elsewhere."""
        self._draining = True

    async def stop(self) -> None:
        """Closes the port."""
        await self._listener.stop()

    async def _metrics(self, _request: web.Request) -> web.Response:
        self._refresh()
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _healthz(self, _request: web.Request) -> web.Response:
        # The loop answers, so the process lives. Restarting it would not bring back a database: no look at it here.
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if self._draining:
            return web.Response(status=503, text="shutting down\n")
        try:
            async with asyncio.timeout(READY_TIMEOUT_SECONDS):
                await self._ping()
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is: not ready
            _log.warning("not_ready", error=type(error).__name__, reason=str(getattr(error, "reason", "")))
            return web.Response(status=503, text="the database does not answer; see the log of the coordinator\n")
        return web.Response(text="ready\n")
