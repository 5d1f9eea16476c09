"""What an object says of itself (key-value metadata of Parquet): the database's rows can be rebuilt from the objects alone."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from google.protobuf.message import DecodeError

from datacoord.errors import InvalidFieldError
from datacoord.paths import BinlogKind, BinlogPath
from datacoord.v1 import collection_pb2, common_pb2

FORMAT_VERSION = 1
_PREFIX = "datacoord."
_TEXTS = frozenset({"kind", "collection_name", "channel_name", "parts", "collection", "checkpoint"})

MANIFEST_PART = "manifest"
"""In `parts`: the object counts only where a manifest names it."""


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
        field_id: group of columns; 0 = all that have none of their own.
        log_id: identity of the object.
        channel_index: which of the collection's channels it is.
        write_id: the same in all objects that were written together: their rows belong together by their place.
        memory_bytes: size of its rows in memory.
        parts: the objects that were written together, as `<kind>:<field id>`, with commas; `manifest` among them = they count
            only where a manifest names them.
        collection: the collection when the object was written: CollectionInfo of the contract, without channel names, in base64.
        checkpoint: a checkpoint of the channel that was stored when the object was written (of a manifest of a sink: the one that
            is stored with it): MsgPosition of the contract, in base64.
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
    channel_index: int = 0
    write_id: int = 0
    memory_bytes: int = 0
    parts: str = ""
    collection: str = ""
    checkpoint: str = ""
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

    @property
    def part(self) -> str:
        """The object as it stands in `parts`."""
        return part_name(self.kind, self.field_id)

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
        try:
            numbers = {name: int(value) for name, value in facts.items() if name not in _TEXTS}
            kind = BinlogKind(facts.pop("kind"))
        except ValueError as error:
            raise InvalidFieldError(
                f"the object has metadata that makes no sense: {error}", field="metadata"
            ) from error
        return cls(kind=kind, **{name: numbers.get(name, value) for name, value in facts.items()})  # type: ignore[arg-type]

    def read_collection(self) -> collection_pb2.CollectionInfo:
        """The collection as the object describes it.

        Raises:
            InvalidFieldError: it does not, or not readably.
        """
        try:
            return collection_pb2.CollectionInfo.FromString(base64.b64decode(self.collection, validate=True))
        except (ValueError, DecodeError) as error:
            raise InvalidFieldError(
                "the object's description of its collection is damaged", field="collection"
            ) from error

    def read_checkpoint(self) -> common_pb2.MsgPosition:
        """The checkpoint the object names.

        Raises:
            InvalidFieldError: it cannot be read.
        """
        try:
            return common_pb2.MsgPosition.FromString(base64.b64decode(self.checkpoint, validate=True))
        except (ValueError, DecodeError) as error:
            raise InvalidFieldError("the object's checkpoint is damaged", field="checkpoint") from error


def part_name(kind: BinlogKind, field_id: int) -> str:
    """An object as it stands in `parts`."""
    return f"{kind.value}:{field_id}"


def encoded(message: collection_pb2.CollectionInfo | common_pb2.MsgPosition) -> str:
    """A message as it stands in the metadata."""
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()
