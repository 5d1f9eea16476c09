"""What an object says of itself (key-value metadata of Parquet): the database's rows can be rebuilt from the objects alone."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from datacoord.errors import InvalidFieldError
from datacoord.paths import BinlogKind, BinlogPath

FORMAT_VERSION = 1
_PREFIX = "datacoord."


@dataclass(frozen=True, slots=True)
class BinlogMetadata:
    """Facts of one object, as stored in it. Row count and size are Parquet's own.

    Attributes:
        kind: what the rows are.
        collection_id: the collection.
        collection_name: its name when the object was written.
        channel_id: the channel.
        channel_name: its name.
        partition_id: the partition; -1 = ALL.
        epoch: of the writer.
        timestamp_from: start of the range, exclusive.
        timestamp_to: end of the range, inclusive.
        ts_min: smallest timestamp of a row.
        ts_max: largest timestamp of a row.
        field_id: group of columns; 0 = all.
        log_id: identity of the object.
        format_version: of this metadata and of the columns' meaning.
    """

    kind: BinlogKind
    collection_id: int
    collection_name: str
    channel_id: int
    channel_name: str
    partition_id: int
    epoch: int
    timestamp_from: int
    timestamp_to: int
    ts_min: int
    ts_max: int
    field_id: int
    log_id: int
    format_version: int = FORMAT_VERSION

    @property
    def path(self) -> BinlogPath:
        """Where the object lies, by the path grammar."""
        return BinlogPath(
            kind=self.kind,
            channel_id=self.channel_id,
            partition_id=self.partition_id,
            epoch=self.epoch,
            timestamp_from=self.timestamp_from,
            timestamp_to=self.timestamp_to,
            field_id=self.field_id,
            log_id=self.log_id,
        )

    def to_key_values(self) -> dict[bytes, bytes]:
        """The facts as they stand in the object's key-value metadata."""
        return {f"{_PREFIX}{field.name}".encode(): str(getattr(self, field.name)).encode() for field in fields(self)}

    @classmethod
    def from_key_values(cls, key_values: Mapping[bytes, bytes]) -> Self:
        """Reads the facts of an object.

        Args:
            key_values: of its Parquet schema or footer; foreign keys are ignored.

        Raises:
            InvalidFieldError: it is none of our objects, or of a newer format.
        """
        facts: dict[str, str] = {}
        for field in fields(cls):
            raw = key_values.get(f"{_PREFIX}{field.name}".encode())
            if raw is None:
                raise InvalidFieldError(
                    f"the object has no {_PREFIX}{field.name}: it is not a binlog", field=field.name
                )
            facts[field.name] = raw.decode()
        if facts["format_version"] != str(FORMAT_VERSION):
            raise InvalidFieldError(
                f"the object has format version {facts['format_version']}, this one reads {FORMAT_VERSION}: upgrade",
                field="format_version",
            )
        texts = {"collection_name", "channel_name"}
        numbers = {name: int(value) for name, value in facts.items() if name not in {*texts, "kind"}}
        return cls(kind=BinlogKind(facts["kind"]), **{name: facts[name] for name in texts}, **numbers)  # type: ignore[arg-type]
