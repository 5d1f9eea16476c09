"""The coordinator as a whole: store, gRPC, jobs and web, started in order and ended in order."""

import asyncio
import contextlib
import gc
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Final, cast

import grpc
from aiohttp import web
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from coordinator.config import Settings
from coordinator.core.jobs import Job
from coordinator.front.processes import GrpcProcess
from coordinator.grpc_port import SERVICES, enable_reflection, open_port
from coordinator.jobs.garbage import GarbageJob
from coordinator.jobs.garbage_sweep import GarbageSettings
from coordinator.jobs.loop import JobLoop
from coordinator.jobs.retention import RetentionRounds
from coordinator.jobs.rounds import AssignmentRounds, LeaseRounds, SealRounds
from coordinator.listening import join_address
from coordinator.logging import get_logger
from coordinator.rpc.admin import AdminServicer
from coordinator.rpc.authentication import authenticator_of
from coordinator.rpc.collections import CollectionServicer
from coordinator.rpc.data_coord import DataCoordServicer
from coordinator.rpc.gate import Gate
from coordinator.rpc.guard import Guard
from coordinator.rpc.transport_security import server_certificates
from coordinator.rpc.watch import WatchHub
from coordinator.store import Store, StoreSettings
from coordinator.store.alone import lock_alone
from coordinator.store.migrate import upgrade
from coordinator.web.app import Listener, WebServer
from coordinator.web.metrics import Metrics
from coordinator.web.page import SAMPLE_SECONDS, History, HistorySampler, StatusPage
from coordinator.web.reported import ReportedMetrics
from datacoord.errors import ConfigInvalidError, StoreUnavailableError
from datacoord.transport import CALLERS
from datacoord.version import version

LAST_CALLS_SECONDS: Final = 0.5
"""What watchers of grpc.health.v1 get, which never end by themselves, once all calls of ours are answered."""

_GARBAGE_OBJECTS_MAX: Final = 150_000
_SWITCH_SECONDS: Final = 0.0005
_LINK_GAP_SHARE: Final = 1 / 3
"""Of the gap that ends gathering, where another process accepts calls: those that waited there come together, so that a shorter one
says that nobody comes. With the whole one all callers waited for the slowest of them, and then the coordinator for all of them."""

_log = get_logger("server")


def _now_ms() -> float:
    return time.time() * 1000


class Coordinator:
    """A coordinator that serves. Make one with `start`, end it with `stop`.

    Attributes:
        address: host:port of gRPC.
        web_address: host:port of metrics and health.
        page_address: host:port of the status page.
    """

    address: str
    web_address: str
    page_address: str

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._closing = contextlib.AsyncExitStack()
        self._metrics = Metrics()
        self._history = History()
        self._authenticator = authenticator_of(settings)
        self._certificates = server_certificates(settings)
        self._gate = Gate(self._authenticator)
        self._guard = Guard(
            self._metrics,
            self._gate,
            deadline_seconds_max=settings.rpc_deadline_seconds_max,
            calls_max=settings.grpc_max_concurrent_rpcs,
        )
        self._health = health.aio.HealthServicer()
        self._page_names = [name.strip().lower() for name in settings.page_names.split(",") if name.strip()]

    @classmethod
    async def start(cls, settings: Settings) -> "Coordinator":
        """Takes the ports, opens the database (and migrates the embedded one), serves.

        Raises:
            PortInUseError: another process listens on a port.
            ConfigInvalidError: an address, a directory, a certificate or a tokens file cannot be used.
            DatabaseNotMigratedError: run `datacoord migrate` first.
            DatabaseTooNewError: a newer version has migrated the database.
            StoreUnavailableError: the database does not answer.
        """
        self = cls(settings)
        try:
            await self._start()
        except BaseException:
            await self._closing.aclose()
            raise
        return self

    async def _start(self) -> None:
        settings = self._settings
        # Ports first: a second coordinator started by mistake must not come as far as migrating a database.
        self._server = server = await self._take_grpc_port()
        self._closing.push_async_callback(server.stop, None)
        page = StatusPage(settings, self._history, _now_ms)
        beside = None if settings.page_port else page
        names = self._page_names if beside else ()
        web_server = WebServer(self._metrics.registry, self._refresh_metrics, self._ping, beside, names)
        web_port = await web_server.start(settings.web_host, settings.web_port)
        self._closing.push_async_callback(web_server.stop)
        self._web = web_server
        self.web_address = self.page_address = join_address(settings.web_host, web_port)
        if settings.page_port:
            await self._open_page_port(page)

        alone = lock_alone_at(settings)
        if alone is not None:
            self._closing.callback(alone.close)
        self._store = await open_store(settings, alone=alone is not None)
        self._guard.refuse_write = self._store.refuse
        self._guard.admit_write = self._store.admit
        self._closing.push_async_callback(self._store.close)
        self._store.on_group(self._metrics.observe_group)
        if weak := await self._store.weak_settings():
            _log.warning("database_may_lose_acknowledged_writes", settings=dict(weak))
        page.show(self._store)
        self._hub = WatchHub(self._store, self._metrics.watch_streams)
        self._make_jobs()
        self._add_services(server)
        await server.start()
        for job in self._jobs:
            job.start()
        self._closing.push_async_callback(self._stop_jobs)
        for service in SERVICES.values():
            await self._health.set(service.full_name, health_pb2.HealthCheckResponse.SERVING)
        _log.info("listening", address=self.address, web_address=self.web_address, version=version())

    async def _open_page_port(self, page: StatusPage) -> None:
        app = web.Application()
        page.add_to(app)
        listener = Listener("page_port", self._page_names)
        port = await listener.start(app, self._settings.web_host, self._settings.page_port)
        self._closing.push_async_callback(listener.stop)
        self.page_address = join_address(self._settings.web_host, port)

    async def _take_grpc_port(self) -> grpc.aio.Server | GrpcProcess:
        settings = self._settings
        server: grpc.aio.Server | GrpcProcess
        if settings.grpc_process:
            server = GrpcProcess(settings, self._metrics.grpc_process_restarts.inc)
            port = await server.take_port()
        else:
            server, port = open_port(settings, self._certificates)
            if settings.grpc_reflection:
                enable_reflection(server, self._gate)
        self.address = join_address(settings.grpc_host, port)
        return server

    def _make_jobs(self) -> None:
        settings, store, metrics = self._settings, self._store, self._metrics
        reported = ReportedMetrics(metrics.registry)
        assignment = AssignmentRounds(store, metrics, reported)
        self._assignment = JobLoop(Job.ASSIGNMENT, assignment, settings.assignment_job_interval_seconds, metrics)
        leases = LeaseRounds(store, self._assignment.kick)
        collecting = garbage_settings(settings)
        self._collector = GarbageJob(store, metrics, collecting)
        self._garbage = JobLoop(Job.GARBAGE, self._collector, collecting.poll_seconds, metrics)
        self._retention = RetentionRounds(store, metrics, settings.retention_policy)
        self._jobs = [
            JobLoop(Job.LEASE, leases, settings.lease_job_interval_seconds, metrics),
            self._assignment,
            JobLoop(Job.SEAL, SealRounds(store), settings.seal_job_interval_seconds, metrics),
            JobLoop(Job.RETENTION, self._retention, settings.retention_job_interval_seconds, metrics),
            JobLoop(Job.PAGE, HistorySampler(store, self._history, _now_ms), SAMPLE_SECONDS, metrics),
            JobLoop(Job.WATCH, self._hub.poll, settings.watch_poll_seconds, metrics),
            self._garbage,
        ]

    def _add_services(self, server: grpc.aio.Server | GrpcProcess) -> None:
        servicers = {
            "data_coord": DataCoordServicer(
                self._store,
                self._hub,
                self._metrics,
                heartbeat_interval_ms=round(self._settings.heartbeat_interval_seconds * 1000),
                kick_assignment=self._assignment.kick,
            ),
            "collections": CollectionServicer(self._store, kick_assignment=self._assignment.kick),
            "admin": AdminServicer(
                self._store,
                kick_assignment=self._assignment.kick,
                collector=self._collector,
                kick_garbage=self._garbage.kick,
            ),
        }
        handlers = [self._guard.handlers(SERVICES[name], servicer) for name, servicer in servicers.items()]
        server.add_generic_rpc_handlers(handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, cast("grpc.aio.Server", server))
        self._metrics.announce(version(), self._guard.methods, CALLERS, [job.name for job in self._jobs])

    async def stop(self) -> None:
        """Ends in order: says so, takes no more calls, finishes those in progress, writes what is queued, closes the database."""
        _log.info("stopping")
        # A watcher who does not read holds it up, and must not hold up the end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_CALLS_SECONDS):
                await self._health.enter_graceful_shutdown()
        self._web.drain()
        self._guard.drain()
        self._hub.close()
        grace_seconds = self._settings.shutdown_grace_seconds
        stopping = asyncio.create_task(self._server.stop(grace_seconds))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._guard.wait_idle()
        await self._server.stop(LAST_CALLS_SECONDS)
        await stopping
        await self._closing.aclose()
        _log.info("stopped")

    async def _stop_jobs(self) -> None:
        self._collector.stop()
        self._retention.stop()
        await asyncio.gather(*(job.stop() for job in self._jobs))

    async def _ping(self) -> None:
        await self._store.ping()
        if isinstance(self._server, GrpcProcess) and not self._server.accepts:
            raise StoreUnavailableError("the gRPC process has ended, and another one is being started")

    def _refresh_metrics(self) -> None:
        self._metrics.copy_store(self._store.statistics)
        # Here, too, and not at calls and handshakes only: where nobody calls, a refused file would stay unnoticed.
        for name, files in (("tokens", self._authenticator), ("tls", self._certificates)):
            if files is not None:
                files.look_again()
                self._metrics.copy_files(name, read_seconds=files.read_seconds, refused=files.refused)
        if self._certificates is not None:
            self._metrics.certificate_expiry.set(self._certificates.expiry_seconds)


def lock_alone_at(settings: Settings) -> IO[str] | None:
    """Makes sure that no other coordinator serves the embedded database; see `lock_alone`.

    Raises:
        ConfigInvalidError: another one does, or `data_dir` cannot be used.
    """
    if settings.embedded:
        make_data_dir(Path(settings.data_dir))
    return lock_alone(settings.effective_database_url)


async def open_store(settings: Settings, *, alone: bool = False) -> Store:
    """Opens the store as the settings say; the embedded database is made and migrated if need be.

    Args:
        settings: of the coordinator.
        alone: no other process serves this database, for certain.

    Raises:
        ConfigInvalidError: `data_dir` cannot be used.
        DatabaseNotMigratedError: run `datacoord migrate` first.
        DatabaseTooNewError: a newer version has migrated the database.
    """
    if settings.embedded:
        make_data_dir(Path(settings.data_dir))
        await asyncio.to_thread(upgrade, settings.effective_database_url)
    return await Store.open(settings.effective_database_url, replace(store_settings(settings), alone=alone))


def store_settings(settings: Settings) -> StoreSettings:
    """What of the settings concerns the store."""
    return StoreSettings(
        storage_root=settings.effective_storage_root,
        seal_policy=settings.seal_policy,
        datanode_lease_ms=round(settings.datanode_lease_seconds * 1000),
        claim_lease_ms=round(settings.claim_lease_seconds * 1000),
        job_lease_ms=round(settings.job_lease_seconds * 1000),
        group_items_max=settings.group_commit_items_max,
        group_bytes_max=settings.group_commit_bytes_max,
        queue_items_max=settings.write_queue_items_max,
        queue_bytes_max=settings.write_queue_bytes_max,
        gap_ms=settings.group_commit_gap_ms * (_LINK_GAP_SHARE if settings.grpc_process else 1),
        busy_timeout_ms=round(settings.database_busy_timeout_seconds * 1000),
    )


def garbage_settings(settings: Settings) -> GarbageSettings:
    """What of the settings concerns the garbage collector."""
    return GarbageSettings(
        enabled=settings.gc_enabled,
        interval_ms=round(settings.gc_interval_seconds * 1000),
        batch_objects_max=settings.gc_batch_objects_max,
        delete_objects_max=settings.gc_delete_objects_max,
        delete_rows_max=settings.gc_delete_rows_max,
        permit_seconds=settings.job_lease_seconds / 3,
    )


def make_data_dir(path: Path) -> None:
    """Makes the directory of the embedded mode.

    Raises:
        ConfigInvalidError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalidError(
            f"data_dir {str(path)!r} cannot be made: {error.strerror or error}; choose another directory", data_dir=path
        ) from error


async def serve(settings: Settings, on_ready: Callable[[Coordinator], None]) -> None:
    """Serves until SIGTERM or SIGINT, then ends in order. A second signal ends the process at once.

    Args:
        settings: of the coordinator.
        on_ready: called once it serves.

    Raises:
        DatacoordError: it could not start; see `Coordinator.start`.
    """
    _tune_interpreter()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    coordinator = await Coordinator.start(settings)
    try:
        on_ready(coordinator)
        await stop.wait()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        await coordinator.stop()


def _tune_interpreter() -> None:
    """Settings of a process that does nothing but serve."""
    # A group of saves makes up to a hundred thousand objects that live until its COMMIT, and no cycles: to look for some takes
    # 40 ms each time, and took a tenth of the processor where much waits and groups are large.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS_MAX, 20, 20)
    # Whole transactions on PostgreSQL run beside the loop: each of them waits this long for the other after every round trip.
    sys.setswitchinterval(_SWITCH_SECONDS)
