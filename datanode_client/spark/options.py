"""Options of the data source `datacoord`, for writing and for reading: one table, which the documentation is tested against."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, Self

from datacoord.credentials import Credentials
from datacoord.errors import ConfigInvalidError
from datacoord.limits import CHANNEL_COUNT_MAX, OWNER_NAME_CHARS_MAX, TIMESTAMP_MAX

FORMAT: Final = "datacoord"
"""Name of the data source: `df.writeStream.format("datacoord")`."""

OPERATIONS: Final = ("append", "upsert", "delete")
"""What a row may do, as words of `operation` and `operationColumn`."""

Condition = tuple[str, str, Any]
"""One condition of the option `filters`: column, operator, value."""

_OPERATORS: Final = frozenset({"=", "==", "!=", "<", "<=", ">", ">=", "in", "not in"})
_OWNER = re.compile(rf"[A-Za-z0-9_.:/-]{{1,{OWNER_NAME_CHARS_MAX}}}")
_CHANNELS = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*")
_SPARKS_OWN: Final = frozenset({"queryname", "checkpointlocation"})
"""What Spark puts among the options of a sink."""


def _text(value: str) -> str:
    return value


def _truth(value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return value.lower() == "true"


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise ValueError("names of columns with commas between them")
    return names


def _number(minimum: int, maximum: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        if not re.fullmatch(r"\d{1,19}", value) or not minimum <= int(value) <= maximum:
            raise ValueError(f"a number from {minimum} to {maximum}")
        return int(value)

    return read


def _one_of(*words: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value.lower()

    return read


def _owner(value: str) -> str:
    if not _OWNER.fullmatch(value):
        raise ValueError(f"1 to {OWNER_NAME_CHARS_MAX} characters of A-Z, a-z, 0-9 and _ . : / -")
    return value


def _channels(value: str) -> str:
    compact = value.replace(" ", "")
    if not _CHANNELS.fullmatch(compact):
        raise ValueError("indexes and ranges of indexes with commas between them, like 0,4-7")
    return compact


def _conditions(value: str) -> tuple[Condition, ...]:
    rule = (
        'conditions in JSON, as pyarrow\'s read_table takes them, like [["key", ">", 7], ["area", "in", ["eu", "us"]]]'
    )
    try:
        parsed = json.loads(value)
        conditions = tuple((name, operator, operand) for name, operator, operand in parsed)
    except (ValueError, TypeError) as error:
        raise ValueError(rule) from error
    for name, operator, operand in conditions:
        lists = operator in ("in", "not in")
        if (
            not isinstance(name, str)
            or not isinstance(operator, str)  # JSON has lists, too, which no set can be asked for
            or operator not in _OPERATORS
            or operand is None
            or isinstance(operand, list) != lists
        ):
            raise ValueError(rule)
    return conditions


def _option(name: str, default: Any, read: Callable[[str], Any] = _text) -> Any:
    return field(default=default, metadata={"name": name, "read": read})


@dataclass(frozen=True, slots=True)
class _Options:
    """What every use of the data source needs.

    Attributes:
        coordinator: address of the coordinator as the driver and the executors reach it, host:port.
        collection: the collection.
        timeout_seconds: how long a plan or a commit may take to be answered; until then it is repeated unchanged.
        tls_ca: PEM file of the authorities that the coordinator's certificate is checked against, or `system`; empty = no TLS.
        tls_client_cert: PEM file of a certificate of our own, where the coordinator asks for one.
        tls_client_key: PEM file of its key.
        tls_server_name: name the coordinator's certificate must hold, where it is not the address's.
        token_file: file that holds the token. (There is no option for a token itself: Spark shows options in plans and logs.)
    """

    coordinator: str = _option("coordinator", "")
    collection: str = _option("collection", "")
    timeout_seconds: int = _option("timeoutSeconds", 600, _number(1, 86_400))
    tls_ca: str = _option("tlsCa", "")
    tls_client_cert: str = _option("tlsClientCert", "")
    tls_client_key: str = _option("tlsClientKey", "")
    tls_server_name: str = _option("tlsServerName", "")
    token_file: str = _option("tokenFile", "")

    @classmethod
    def read(cls, options: Mapping[str, str]) -> Self:
        """Reads the options a user gave.

        Args:
            options: by name; Spark compares names without regard to case.

        Raises:
            ConfigInvalidError: one is unknown, malformed or missing; the sentence says what it may be.
        """
        known = {spec.metadata["name"].lower(): spec for spec in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in options.items():
            spec = known.get(key.lower())
            if spec is not None:
                try:
                    values[spec.name] = spec.metadata["read"](value.strip())
                except ValueError as rule:
                    name = spec.metadata["name"]
                    raise ConfigInvalidError(
                        f"option {name} is {value!r}, but must be {rule}", setting=name, value=value
                    ) from rule
            elif key.lower() not in _SPARKS_OWN:
                raise _unknown(key, cls.option_names())
        read = cls(**values)
        for name in ("coordinator", "collection"):
            if not getattr(read, name):
                raise ConfigInvalidError(f'option {name} is missing; say .option("{name}", …)', setting=name)
        read.check()
        return read

    @property
    def credentials(self) -> Credentials:
        """TLS and token; what is empty comes from the environment of the driver."""
        return Credentials(**{spec.name: getattr(self, spec.name) for spec in fields(Credentials)})

    @classmethod
    def option_names(cls) -> list[str]:
        """Names of all options, as they are documented."""
        return [spec.metadata["name"] for spec in fields(cls)]

    def check(self) -> None:
        """Refuses combinations that mean nothing.

        Raises:
            ConfigInvalidError: with what to change.
        """


@dataclass(frozen=True, slots=True)
class SinkOptions(_Options):
    """Options of `df.writeStream.format("datacoord")` and `df.write.format("datacoord")`; docs/spark-sink.md says more.

    Attributes:
        channels: indexes of the channels this query writes, like `0,4-7`; empty = all of them with `channelColumn`, else 0.
        channel_column: the column with the index (integer) or the name (text) of a row's channel.
        timestamp_column: the column with the order of the rows in their channel, an integer from 1 on; without it a batch has
            one timestamp, batch id + 1.
        ordinal_column: the column that orders rows of one timestamp, an integer from 0 to 2^18-1.
        operation: what all rows do: append, upsert or delete; empty = upsert where there is a primary key, else append.
        operation_column: the column with the operation of each row, in words.
        partition_column: the column with the name of a row's partition; null = the default partition.
        owner: name under which the channels are claimed; empty = made of `checkpointLocation` or of the query's name.
        force: take channels whose owner's lease lives.
        resume: `progress`: a query that begins anew leaves out the rows that were landed before it.
        batch_id: number of a `df.write` that may be repeated, as in foreachBatch; -1 = it is not repeated.
        create_if_missing: create the collection when there is none of this name.
        primary_key: key columns of a collection that is created; must agree with one that exists.
        channel_count: channels of a collection that is created.
        storage: storage root of a collection that is created; empty = below the coordinator's.
        compression: Parquet codec of the objects.
        buffer_bytes: rows that one task keeps in memory before it writes an object.
    """

    channels: str = _option("channels", "", _channels)
    channel_column: str = _option("channelColumn", "")
    timestamp_column: str = _option("timestampColumn", "")
    ordinal_column: str = _option("ordinalColumn", "")
    operation: str = _option("operation", "", _one_of(*OPERATIONS))
    operation_column: str = _option("operationColumn", "")
    partition_column: str = _option("partitionColumn", "")
    owner: str = _option("owner", "", _owner)
    force: bool = _option("force", False, _truth)
    resume: str = _option("resume", "", _one_of("progress"))
    batch_id: int = _option("batchId", -1, _number(0, TIMESTAMP_MAX))
    create_if_missing: bool = _option("createIfMissing", True, _truth)
    primary_key: tuple[str, ...] = _option("primaryKey", (), _names)
    channel_count: int = _option("channelCount", 1, _number(1, CHANNEL_COUNT_MAX))
    storage: str = _option("storage", "")
    compression: str = _option("compression", "zstd", _one_of("zstd", "snappy", "lz4", "gzip", "brotli", "none"))
    buffer_bytes: int = _option("bufferBytes", 64 * 1024 * 1024, _number(1024, 2**30))

    def check(self) -> None:
        """As in the base class."""
        if self.operation and self.operation_column:
            raise ConfigInvalidError(
                "operation and operationColumn are both given; the column says it of each row, so drop operation",
                setting="operation",
            )
        if self.resume and not self.timestamp_column:
            raise ConfigInvalidError(
                "resume=progress needs timestampColumn: without an order of its own a batch of another query cannot be told "
                "from one that was landed",
                setting="resume",
            )
        if self.batch_id >= 0 and not self.owner:
            raise ConfigInvalidError(
                "batchId is given without owner; a repeated write is recognised by both", setting="batchId"
            )

    @property
    def control_columns(self) -> tuple[str, ...]:
        """Columns of the frame that say where and when a row goes; they are stored only if the collection has them too."""
        return tuple(
            name
            for name in (
                self.channel_column,
                self.timestamp_column,
                self.ordinal_column,
                self.operation_column,
                self.partition_column,
            )
            if name
        )

    def channel_indexes(self, channel_count: int) -> list[int]:
        """The channels that this query writes, in order.

        Args:
            channel_count: how many the collection has.

        Raises:
            ConfigInvalidError: there is no such channel, or several and no column that chooses between them.
        """
        indexes: set[int] = set()
        for part in self.channels.split(",") if self.channels else ():
            first, _, last = part.partition("-")
            if not int(first) <= int(last or first) < channel_count:
                raise ConfigInvalidError(
                    f"option channels names {part}, but collection {self.collection!r} has channels 0 to {channel_count - 1}",
                    setting="channels",
                )
            indexes.update(range(int(first), int(last or first) + 1))
        if not indexes:
            indexes = set(range(channel_count)) if self.channel_column else {0}
        if len(indexes) > 1 and not self.channel_column:
            raise ConfigInvalidError(
                f"option channels names {len(indexes)} channels, but no channelColumn says which of them a row goes to",
                setting="channels",
            )
        return sorted(indexes)


@dataclass(frozen=True, slots=True)
class ReadOptions(_Options):
    """Options of `spark.read.format("datacoord")`.

    Attributes:
        with_timestamp: give the system's column `_timestamp` too.
        filters: only rows for which all of these are true; they go down to Parquet.
        max_partition_bytes: rows of one task, by their size in memory.
    """

    with_timestamp: bool = _option("withTimestamp", False, _truth)
    filters: tuple[Condition, ...] = _option("filters", (), _conditions)
    max_partition_bytes: int = _option("maxPartitionBytes", 128 * 1024 * 1024, _number(1, 2**40))


def stream_owner(options: Mapping[str, str]) -> str:
    """Name under which a stream claims its channels.

    The checkpoint location is what Spark knows a query by over restarts: its id lies there, which R6 names it by and which is not
    known where a batch is planned. The query's name may change, and counts only where Spark makes the location of it.

    Args:
        options: as Spark hands them over.

    Raises:
        ConfigInvalidError: nothing names the query.
    """
    lowered = {key.lower(): value for key, value in options.items()}
    owner, name = lowered.get("owner", ""), lowered.get("queryname", "")
    location = lowered.get("checkpointlocation", "").rstrip("/")
    if owner:
        return owner
    if not location and not name:
        raise ConfigInvalidError(
            'nothing names this query over restarts; give it option("checkpointLocation", …), queryName(…) or option("owner", …)',
            setting="owner",
        )
    shown = re.sub(r"[^A-Za-z0-9_.-]", "_", location.rpartition("/")[2] or name)[:64]
    if not location:
        return f"spark/{shown}"
    return f"spark/{shown}/{hashlib.sha256(location.encode()).hexdigest()[:12]}"


def _unknown(key: str, names: list[str]) -> ConfigInvalidError:
    lowered = {name.lower(): name for name in names}
    near = get_close_matches(key.lower(), lowered, n=1)
    advice = f"did you mean {lowered[near[0]]}?" if near else f"there are {', '.join(names)}"
    return ConfigInvalidError(f"data source {FORMAT} has no option {key!r}; {advice}", setting=key)
