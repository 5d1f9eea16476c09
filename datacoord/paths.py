"""The path grammar of objects: what a path says is what the garbage collector needs to know of an object without a row.

    <kind>/<channel id>/<partition id | all>/<epoch>/<from>-<to>-<field id>-<log id>.parquet

`kind` is insert_log, delta_log or stats_log; numbers are decimal without leading zeros. The path is relative to the
collection's storage root. Channel ids and epochs are unique in the database and never reused, so that two writers can never
mean the same object.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from datacoord.errors import PathNotAllowedError
from datacoord.limits import ALL_PARTITIONS_ID, PATH_BYTES_MAX, TIMESTAMP_MAX


class BinlogKind(StrEnum):
    """Kinds of binlogs by the name of their directory."""

    INSERT = "insert_log"
    DELTA = "delta_log"
    STATS = "stats_log"

    __hash__ = str.__hash__  # Enum's own is a call in Python, and kinds are looked up for every object of a save


_NUMBER = r"(0|[1-9][0-9]{0,18})"
_GRAMMAR = re.compile(
    rf"(insert_log|delta_log|stats_log)/{_NUMBER}/(all|0|[1-9][0-9]{{0,18}})/{_NUMBER}"
    rf"/{_NUMBER}-{_NUMBER}-{_NUMBER}-{_NUMBER}\.parquet"
)


@dataclass(frozen=True, slots=True)
class BinlogPath:
    """A path that follows the grammar; one that does not cannot be built by `parse`.

    Attributes:
        kind: what the object holds.
        channel_id: number of the channel.
        partition_id: the partition, or ALL_PARTITIONS_ID.
        epoch: epoch of the writer.
        timestamp_from: start of the range, exclusive.
        timestamp_to: end of the range, inclusive.
        field_id: group of columns; 0 = all columns.
        log_id: random identity of the object.
    """

    kind: BinlogKind
    channel_id: int
    partition_id: int
    epoch: int
    timestamp_from: int
    timestamp_to: int
    field_id: int
    log_id: int

    def __str__(self) -> str:
        """The path, relative to the collection's storage root."""
        partition = "all" if self.partition_id == ALL_PARTITIONS_ID else str(self.partition_id)
        leaf = f"{self.timestamp_from}-{self.timestamp_to}-{self.field_id}-{self.log_id}.parquet"
        return f"{self.kind.value}/{self.channel_id}/{partition}/{self.epoch}/{leaf}"

    @classmethod
    def parse(cls, path: str) -> Self:
        """Reads a path.

        Raises:
            PathNotAllowedError: it is too long or does not follow the grammar to the letter.
        """
        match = _GRAMMAR.fullmatch(path) if len(path) <= PATH_BYTES_MAX else None
        if match is None:
            shown = path if len(path) <= 80 else path[:80] + "…"
            raise PathNotAllowedError(
                f"object path {shown!r} does not follow the grammar <kind>/<channel id>/<partition id>/<epoch>/"
                "<from>-<to>-<field id>-<log id>.parquet",
                path=shown,
            )
        kind, channel, partition, *rest = match.groups()
        numbers = [int(channel), ALL_PARTITIONS_ID if partition == "all" else int(partition), *map(int, rest)]
        if max(numbers) > TIMESTAMP_MAX:
            raise PathNotAllowedError(f"object path {path!r} has a number beyond 63 bits", path=path)
        return cls(BinlogKind(kind), *numbers)
