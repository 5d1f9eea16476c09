"""Settings of the coordinator: one frozen dataclass. `coordinator.config_sources` loads it.

Every setting has one name everywhere: `grpc_port` in code and in the file, `DATACOORD_GRPC_PORT` in the environment,
`--grpc-port` on the command line. `DATACOORD_<NAME>_FILE` names a file that holds the value (secrets of an orchestrator).
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Final

from coordinator.core.retention import RetentionPolicy
from coordinator.core.segments import SealPolicy
from coordinator.setting import range_problem, setting
from datacoord.errors import ConfigInvalidError
from datacoord.limits import HARD_CALLS_MARGIN, URGENT_CALLS_MARGIN
from datacoord.storage_roots import problem_of

MASK: Final = "******"
_POLICY = SealPolicy()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything the coordinator can be told. Built by `config_sources.load`; valid by construction (`__post_init__`)."""

    data_dir: str = setting(
        "datacoord-data",
        "Directory of the embedded mode: the SQLite database `datacoord.db` and, unless `storage_root` says otherwise, the "
        "objects. Created if missing. Not used when both `database_url` and `storage_root` are set.",
    )
    database_url: str = setting(
        "",
        "SQLAlchemy URL of the database. Empty = embedded: SQLite in `data_dir`, migrated automatically at start. With a URL, "
        "`datacoord migrate` is a separate step.",
        secret=True,
    )
    storage_root: str = setting(
        "",
        "Where collections keep their objects unless they are created with a root of their own: a pyarrow.fs URI or a directory "
        "that datanodes can reach. Empty = `objects` in `data_dir`.",
    )
    grpc_host: str = setting(
        "127.0.0.1",
        "Address the gRPC server listens on. On another one than loopback it wants encryption and tokens, or to be told that it "
        "can do without.",
    )
    grpc_port: int = setting(
        13333, "Port of the gRPC server (Milvus's DataCoord has the same). 0 = any free one.", minimum=0, maximum=65535
    )
    grpc_max_concurrent_rpcs: int = setting(
        8192,
        "Calls in progress at most, open streams included. Beyond it calls are refused with OVERLOADED and a time to come back; "
        f"those that keep sessions alive only {URGENT_CALLS_MARGIN} calls later. More than {HARD_CALLS_MARGIN:,} beyond it gRPC "
        "refuses itself: RESOURCE_EXHAUSTED without a reason or a time.",
        minimum=16,
        maximum=65536,
    )
    grpc_process: bool = setting(
        False,
        "Accept calls in a process of its own, which hands them to the coordinator over a socket. It takes the work of gRPC from "
        "the thread that decides and writes: for many datanodes on two processors or more, at the price of its memory and a "
        "little time per call. If it ends, another one takes its place.",
    )
    grpc_reflection: bool = setting(
        False,
        "Serve gRPC reflection, so that tools like grpcurl find the contract. For development; with tokens, for admins only.",
    )
    tls_cert_file: str = setting(
        "",
        "PEM file of the certificate of the gRPC port, with its chain. Empty = no encryption. It, `tls_key_file` and "
        "`tls_client_ca_file` are read again when they change, without a restart.",
    )
    tls_key_file: str = setting("", "PEM file of the key of `tls_cert_file`, not encrypted.")
    tls_client_ca_file: str = setting(
        "",
        "PEM file of authorities: only clients that show a certificate of theirs can connect (mTLS). Empty = clients need none.",
    )
    allow_plaintext: bool = setting(
        False, "Serve gRPC without encryption on another address than loopback; the log warns at every start."
    )
    tokens_file: str = setting(
        "",
        "TOML file with the hashes of the tokens that are let in, each with a name and a role (`datacoord token new`). Read again "
        "when it changes, without a restart. Empty = there are no tokens: who can connect may do everything.",
    )
    allow_anonymous: bool = setting(
        False,
        "Serve gRPC on another address than loopback with neither `tokens_file` nor `tls_client_ca_file`, so that whoever reaches "
        "it may do everything; the log warns at every start.",
    )
    rpc_deadline_seconds_max: float = setting(
        30.0,
        "Longest time a call may take. Calls without a deadline get this one, longer ones are cut to it.",
        minimum=0.1,
        maximum=600,
    )
    shutdown_grace_seconds: float = setting(
        10.0, "Time that calls in progress have to finish after SIGTERM.", minimum=0, maximum=600
    )
    web_host: str = setting("127.0.0.1", "Address of the ports for metrics, health and the status page.")
    web_port: int = setting(13334, "Port for metrics and health. 0 = any free one.", minimum=0, maximum=65535)
    page_port: int = setting(
        0,
        "Port of the status page, where it shall not be on the port for metrics: people may then reach the one and not the other. "
        "0 = on the port for metrics.",
        minimum=0,
        maximum=65535,
    )
    page_names: str = setting(
        "",
        "Names of hosts, with commas between them, by which the port of the status page may be asked for besides localhost and the "
        "addresses of loopback, such as that of a proxy before it. Others are refused, which stops DNS rebinding. Empty = on "
        "loopback no others, elsewhere any.",
    )
    watch_poll_seconds: float = setting(
        1.0,
        "How often an open WatchDmChannels stream looks for changes that other replicas made. Changes made here wake it at once.",
        minimum=0.01,
        maximum=60,
    )
    datanode_lease_seconds: float = setting(
        15.0,
        "A datanode's session ends when nothing is heard of it for this long, by the database's clock. Must be at least three "
        "heartbeats.",
        minimum=0.5,
        maximum=3600,
    )
    heartbeat_interval_seconds: float = setting(
        3.0, "How often datanodes report; told to them when they register.", minimum=0.05, maximum=600
    )
    claim_lease_seconds: float = setting(
        60.0,
        "A claimed channel may be claimed by another name when its owner has written nothing for this long, by the "
        "database's clock.",
        minimum=0.5,
        maximum=86400,
    )
    job_lease_seconds: float = setting(
        5.0,
        "Another replica takes over the background jobs when their holder has not run them for this long, by the database's "
        "clock. On SQLite, which one coordinator serves, a new one takes them over at once.",
        minimum=0.5,
        maximum=3600,
    )
    lease_job_interval_seconds: float = setting(
        1.0, "How often sessions whose lease ran out are looked for.", minimum=0.05, maximum=3600
    )
    assignment_job_interval_seconds: float = setting(
        2.0,
        "How often channels are assigned and balanced where nothing asks for it sooner.",
        minimum=0.05,
        maximum=3600,
    )
    seal_job_interval_seconds: float = setting(
        10.0, "How often growing segments are judged by the sealing policies.", minimum=0.05, maximum=86400
    )
    retention_job_interval_seconds: float = setting(
        60.0, "How often what is kept long enough is deleted from the database.", minimum=0.05, maximum=86400
    )
    event_retention_seconds: float = setting(
        7 * 86400.0,
        "How long entries of the history are kept. `datacoord verify` proves the history as far back as it goes.",
        minimum=60,
        maximum=3650 * 86400,
    )
    event_rows_max: int = setting(
        10_000_000,
        "Entries of the history at most: beyond it the oldest go, however young they are. An entry of a save has about 200 "
        "bytes, one of 128 checkpoints about 2 KB.",
        minimum=1000,
    )
    session_retention_seconds: float = setting(
        86400.0,
        "How long sessions of datanodes that are over, and claimants that own nothing, are kept after they were heard last.",
        minimum=60,
        maximum=3650 * 86400,
    )
    flush_retention_seconds: float = setting(
        86400.0,
        "How long a flush can be asked about after it is done.",
        minimum=60,
        maximum=3650 * 86400,
    )
    group_commit_items_max: int = setting(
        4096,
        "Items (positions, lanes) of one write transaction at most; a call is never split.",
        minimum=1,
        maximum=1_000_000,
    )
    group_commit_bytes_max: int = setting(
        512 * 1024,
        "Bytes of the calls of one write transaction, about; a call is never split. The default is about a thousand lanes with "
        "three objects each. While more than twice as much waits, half of what waits, and four times as much at most.",
        minimum=1024,
        maximum=1024 * 1024 * 1024,
    )
    group_commit_gap_ms: float = setting(
        1.0,
        "After a transaction of several calls the next one waits while calls follow one another within this time, for 20 ms at "
        "most and not longer than half of what that one took: fewer, larger transactions cost less. A third of it with "
        "`grpc_process`, out of which calls come together. On SQLite it waits longer while calls are refused or late, or still "
        "came when the last wait ended. 0 = never.",
        minimum=0,
        maximum=20,
    )
    write_queue_items_max: int = setting(
        65536,
        "Items that wait for a write transaction at most; beyond it calls are refused with OVERLOADED and a time to come back.",
        minimum=1,
        maximum=10_000_000,
    )
    write_queue_bytes_max: int = setting(
        256 * 1024 * 1024,
        "Bytes, about, of the calls that wait for a write transaction at most; beyond it calls are refused like those beyond "
        "`write_queue_items_max`.",
        minimum=1024 * 1024,
        maximum=64 * 1024 * 1024 * 1024,
    )
    database_busy_timeout_seconds: float = setting(
        5.0,
        "How long a transaction waits for another process's lock on the database before it is refused as not done.",
        minimum=0.01,
        maximum=600,
    )
    segment_size_bytes_max: int = setting(
        _POLICY.size_bytes_max, "A growing segment is sealed when its objects have this many bytes.", minimum=1
    )
    segment_rows_max: int = setting(
        _POLICY.rows_max, "A growing segment is sealed when its insert logs have this many rows.", minimum=1
    )
    segment_binlogs_max: int = setting(
        _POLICY.binlogs_max,
        "A growing segment is sealed when it has this many ranges: as many as binlogs of one field, and those with deletes only.",
        minimum=1,
    )
    segment_lifetime_seconds_max: float = setting(
        _POLICY.lifetime_ms_max / 1000, "A growing segment is sealed when it is this old.", minimum=1
    )
    segment_idle_seconds_max: float = setting(
        _POLICY.idle_ms_max / 1000,
        "A growing segment larger than `segment_idle_size_bytes_min` is sealed when nothing was added for longer than this.",
        minimum=1,
    )
    segment_idle_size_bytes_min: int = setting(
        _POLICY.idle_size_bytes_min,
        "Segments of this many bytes or fewer stay open however long they are idle.",
        minimum=0,
    )
    segment_channel_growing_bytes_max: int = setting(
        _POLICY.channel_growing_bytes_max,
        "Bytes of all growing segments of a channel at most: beyond it the sealing job seals as many of the largest as it takes.",
        minimum=1,
    )
    gc_enabled: bool = setting(
        True, "Collect garbage on this replica. Off on every replica: nothing is ever deleted, and orphans stay."
    )
    gc_interval_seconds: float = setting(
        3600.0, "Time from the end of a round of the garbage collector to the next.", minimum=0.1, maximum=30 * 86400
    )
    gc_batch_objects_max: int = setting(
        2000, "Objects that one SQL read of the garbage collector judges.", minimum=1, maximum=100_000
    )
    gc_delete_objects_max: int = setting(
        500,
        "Objects that the garbage collector deletes before it looks again whether it is paused or has lost its lease.",
        minimum=1,
        maximum=100_000,
    )
    gc_delete_rows_max: int = setting(
        1000,
        "Rows of dropped segments that one transaction of the garbage collector deletes; other writers take turns with them.",
        minimum=1,
        maximum=100_000,
    )
    log_level: str = setting(
        "info", "Least severe log event that is written.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting(
        "auto",
        "Form of log lines: `json`, `console` for people, or `auto` = console on a terminal, else json.",
        choices=("auto", "json", "console"),
    )

    def __post_init__(self) -> None:
        """Refuses settings that cannot work, all of them at once.

        Raises:
            ConfigInvalidError: with a sentence for each setting that is out of its range.
        """
        problems = [problem for spec in fields(self) if (problem := range_problem(spec, getattr(self, spec.name)))]
        if self.datanode_lease_seconds < 3 * self.heartbeat_interval_seconds:
            problems.append(
                f"datanode_lease_seconds is {self.datanode_lease_seconds:g}, but must be at least three times "
                f"heartbeat_interval_seconds ({self.heartbeat_interval_seconds:g}), or one lost heartbeat ends a session"
            )
        if self.job_lease_seconds < 2 * max(self.lease_job_interval_seconds, self.assignment_job_interval_seconds):
            problems.append(
                f"job_lease_seconds is {self.job_lease_seconds:g}, but must be at least twice the intervals of the lease and "
                "assignment jobs, or replicas take the jobs from each other"
            )
        if self.web_port == self.grpc_port != 0 and self.web_host == self.grpc_host:
            problems.append(f"web_port and grpc_port are both {self.web_port}; give each its own port")
        beside = {self.web_port} | ({self.grpc_port} if self.web_host == self.grpc_host else set())
        if self.page_port and self.page_port in beside:
            problems.append(f"page_port is {self.page_port} like another port; give it its own, or 0")
        if self.storage_root and (problem := problem_of(self.storage_root)):
            problems.append(f"storage_root {problem}")
        problems += self._security_problems()
        if problems:
            raise ConfigInvalidError("; ".join(problems), problems=len(problems))

    def _security_problems(self) -> Iterator[str]:
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            yield "tls_cert_file and tls_key_file belong together; give both or none"
        if self.tls_client_ca_file and not self.tls_cert_file:
            yield "tls_client_ca_file asks clients for certificates, which needs tls_cert_file and tls_key_file"

    @property
    def embedded(self) -> bool:
        """Whether the database is the coordinator's own SQLite file."""
        return not self.database_url

    @property
    def effective_database_url(self) -> str:
        """URL of the database, of the embedded one too."""
        return self.database_url or f"sqlite:///{Path(self.data_dir).absolute() / 'datacoord.db'}"

    @property
    def effective_storage_root(self) -> str:
        """Root of the objects of collections that name none.

        Raises:
            ConfigInvalidError: the database is shared, and nobody has said where all can reach the objects.
        """
        if self.database_url and not self.storage_root:
            raise ConfigInvalidError(
                "storage_root is empty, but must be set when database_url is: objects of a shared database do not belong into a "
                "directory of this machine",
                setting="storage_root",
            )
        return self.storage_root or str(Path(self.data_dir).absolute() / "objects")

    @property
    def retention_policy(self) -> RetentionPolicy:
        """What the database keeps for how long."""
        return RetentionPolicy(
            event_ms=round(self.event_retention_seconds * 1000),
            event_rows_max=self.event_rows_max,
            session_ms=round(self.session_retention_seconds * 1000),
            flush_ms=round(self.flush_retention_seconds * 1000),
        )

    @property
    def seal_policy(self) -> SealPolicy:
        """When growing segments are closed."""
        return SealPolicy(
            size_bytes_max=self.segment_size_bytes_max,
            rows_max=self.segment_rows_max,
            binlogs_max=self.segment_binlogs_max,
            lifetime_ms_max=round(self.segment_lifetime_seconds_max * 1000),
            idle_ms_max=round(self.segment_idle_seconds_max * 1000),
            idle_size_bytes_min=self.segment_idle_size_bytes_min,
            channel_growing_bytes_max=self.segment_channel_growing_bytes_max,
        )


def specs() -> dict[str, Field[Any]]:
    """Every setting by name, in the order of the documentation."""
    return {spec.name: spec for spec in fields(Settings)}


def shown(settings: Settings) -> dict[str, object]:
    """The settings as they may be shown to anybody: secrets are masked."""
    return {
        name: MASK if spec.metadata["secret"] and getattr(settings, name) else getattr(settings, name)
        for name, spec in specs().items()
    }


assert all(spec.default is not MISSING for spec in fields(Settings))  # noqa: S101 - `datacoord serve` alone must work
