"""Settings of the process side of a datanode: how it calls the coordinator, and how it holds and hands back channels.

All are frozen dataclasses with the unit in the name; a value out of range is refused when it is made, not when it first hurts.
What concerns one channel (buffers, policies, objects) is in `datanode_client.config`.
"""

from dataclasses import dataclass, field

from datacoord.credentials import Credentials
from datacoord.errors import ConfigInvalidError
from datacoord.limits import CLAIM_CHANNELS_MAX, MESSAGE_BYTES_MAX, SAVE_BINLOGS_MAX, SAVE_CHANNELS_MAX


def _require(ok: bool, setting: str, value: object, rule: str) -> None:
    if not ok:
        raise ConfigInvalidError(f"{setting} is {value!r}, but must be {rule}", setting=setting, value=value, rule=rule)


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """Waiting between repetitions: exponential, capped, with jitter so that many datanodes do not come back as one.

    Attributes:
        delay_seconds_initial: before the first repetition.
        delay_seconds_max: the cap.
        multiplier: from one delay to the next.
    """

    delay_seconds_initial: float = 0.05
    delay_seconds_max: float = 2.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        _require(self.delay_seconds_initial > 0, "delay_seconds_initial", self.delay_seconds_initial, "above 0")
        _require(
            self.delay_seconds_max >= self.delay_seconds_initial,
            "delay_seconds_max",
            self.delay_seconds_max,
            "at least delay_seconds_initial",
        )
        _require(self.multiplier >= 1, "multiplier", self.multiplier, "at least 1")


@dataclass(frozen=True, slots=True)
class SaveBatchConfig:
    """How parts of many channels share one SaveBinlogPaths.

    Attributes:
        linger_seconds: how long a part waits for company before it is sent.
        calls_in_flight_max: calls at once. While they are under way parts gather, so few calls mean large batches; more than
            one keeps channels going while a call hangs until its deadline, and sends at once what did not fit into the last.
        another_call_after_seconds: a call that is unanswered for so long hangs, or has to wait: what has gathered goes beside it.
        channels_max: parts of one call.
        binlogs_max: binlogs of one call, all parts together.
        message_bytes_max: size of one call; room for gRPC's own framing is left below the server's limit.
    """

    linger_seconds: float = 0.005
    calls_in_flight_max: int = 2
    another_call_after_seconds: float = 5.0
    channels_max: int = SAVE_CHANNELS_MAX
    binlogs_max: int = SAVE_BINLOGS_MAX
    message_bytes_max: int = MESSAGE_BYTES_MAX - 1024 * 1024

    def __post_init__(self) -> None:
        _require(self.linger_seconds >= 0, "linger_seconds", self.linger_seconds, "0 or above")
        _require(self.calls_in_flight_max >= 1, "calls_in_flight_max", self.calls_in_flight_max, "at least 1")
        _require(
            self.another_call_after_seconds >= 0,
            "another_call_after_seconds",
            self.another_call_after_seconds,
            "0 or above",
        )
        _require(
            1 <= self.channels_max <= SAVE_CHANNELS_MAX, "channels_max", self.channels_max, f"1 to {SAVE_CHANNELS_MAX}"
        )
        _require(1 <= self.binlogs_max <= SAVE_BINLOGS_MAX, "binlogs_max", self.binlogs_max, f"1 to {SAVE_BINLOGS_MAX}")
        _require(
            1 <= self.message_bytes_max < MESSAGE_BYTES_MAX,
            "message_bytes_max",
            self.message_bytes_max,
            f"1 to {MESSAGE_BYTES_MAX - 1}",
        )


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """How a process calls the coordinator.

    Attributes:
        target: the coordinator as gRPC understands it, for instance `127.0.0.1:7070`.
        client_name: who calls, one of `datacoord.transport.CALLERS`, for the coordinator's counters.
        call_timeout_seconds: deadline of one attempt of a call; calls that must be answered are repeated after it.
        heartbeat_timeout_seconds: deadline of one heartbeat; the next one is its repetition.
        watch_stream_seconds: a watch stream is opened anew after so long, so that one that hangs in a proxy cannot hang forever.
        channels_per_call: channels of one release or of one page of recovery info.
        retry: waiting between repetitions.
        save_batch: how saves are batched.
        credentials: TLS and token, as paths; what they leave empty comes from the environment of the process that calls.
    """

    target: str
    client_name: str = "datanode"
    call_timeout_seconds: float = 20.0
    heartbeat_timeout_seconds: float = 5.0
    watch_stream_seconds: float = 300.0
    channels_per_call: int = 256
    retry: RetryConfig = field(default_factory=RetryConfig)
    save_batch: SaveBatchConfig = field(default_factory=SaveBatchConfig)
    credentials: Credentials = field(default_factory=Credentials)

    def __post_init__(self) -> None:
        _require(bool(self.target), "target", self.target, "host:port of the coordinator")
        for name in ("call_timeout_seconds", "heartbeat_timeout_seconds", "watch_stream_seconds"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        _require(
            1 <= self.channels_per_call <= CLAIM_CHANNELS_MAX,
            "channels_per_call",
            self.channels_per_call,
            f"1 to {CLAIM_CHANNELS_MAX}",
        )


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How a datanode holds and hands back channels.

    Attributes:
        drain_timeout_seconds: how long one channel may take to make its rows durable when it is handed back; after it the
            channel goes back as it is, and its next owner reads the rest again.
        stop_timeout_seconds: how long `DataNode.stop` may take in all before everything left is dropped. Dropping loses nothing.
        farewell_seconds: how long the last report of a session is repeated; unheard, the session ends with its lease.
        restart: waiting before a channel whose graph failed is handed back to come again under a new epoch.
        restart_reset_seconds: a graph that ran for so long has recovered: its next failure waits the initial delay again.
    """

    drain_timeout_seconds: float = 60.0
    stop_timeout_seconds: float = 90.0
    farewell_seconds: float = 5.0
    restart: RetryConfig = field(default_factory=lambda: RetryConfig(0.2, 30.0))
    restart_reset_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("drain_timeout_seconds", "stop_timeout_seconds", "farewell_seconds", "restart_reset_seconds"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
