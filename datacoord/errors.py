"""The one hierarchy of errors, and the one table from reasons to gRPC codes.

A refusal of a call travels as a gRPC status with `google.rpc.ErrorInfo {reason, domain, metadata}`; a refusal of one channel of a
batch stands in its result as the same `google.rpc.Status`. `to_status` and `from_status` are the only translations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

DOMAIN = "datacoord"


class Reason(StrEnum):
    """Stable, documented names of everything that can go wrong (docs/reference/errors.md)."""

    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    INVALID_FIELD = "INVALID_FIELD"
    PATH_NOT_ALLOWED = "PATH_NOT_ALLOWED"
    BATCH_TOO_LARGE = "BATCH_TOO_LARGE"
    CHANNEL_NOT_FOUND = "CHANNEL_NOT_FOUND"
    COLLECTION_NOT_FOUND = "COLLECTION_NOT_FOUND"
    PARTITION_NOT_FOUND = "PARTITION_NOT_FOUND"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    FLUSH_NOT_FOUND = "FLUSH_NOT_FOUND"
    SEGMENT_NOT_FOUND = "SEGMENT_NOT_FOUND"
    COLLECTION_EXISTS = "COLLECTION_EXISTS"
    SEGMENT_STATE_CONFLICT = "SEGMENT_STATE_CONFLICT"
    CHANNEL_DROPPED = "CHANNEL_DROPPED"
    FENCED = "FENCED"
    GAP = "GAP"
    OVERLAP = "OVERLAP"
    BELOW_CHECKPOINT = "BELOW_CHECKPOINT"
    OUT_OF_ORDER = "OUT_OF_ORDER"
    WRONG_MODE = "WRONG_MODE"
    OWNED = "OWNED"
    GC_PAUSED = "GC_PAUSED"
    OVERLOADED = "OVERLOADED"
    DEADLINE_EXPIRED = "DEADLINE_EXPIRED"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    COMMIT_OUTCOME_UNKNOWN = "COMMIT_OUTCOME_UNKNOWN"
    INTERNAL = "INTERNAL"
    # Never on the wire: what a process says to the person who started it.
    CONFIG_INVALID = "CONFIG_INVALID"
    DATABASE_TOO_NEW = "DATABASE_TOO_NEW"
    DATABASE_NOT_MIGRATED = "DATABASE_NOT_MIGRATED"
    DATABASE_IN_USE = "DATABASE_IN_USE"
    PORT_IN_USE = "PORT_IN_USE"
    SOURCE_INVALID = "SOURCE_INVALID"
    SOURCE_LOST = "SOURCE_LOST"
    SOURCE_UNAVAILABLE = "SOURCE_UNAVAILABLE"
    OBJECT_STORE_FAILED = "OBJECT_STORE_FAILED"
    COORDINATOR_UNREACHABLE = "COORDINATOR_UNREACHABLE"
    JAVA_NOT_FOUND = "JAVA_NOT_FOUND"
    SPARK_STOPPED = "SPARK_STOPPED"


CODES: Mapping[Reason, grpc.StatusCode] = {
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.PATH_NOT_ALLOWED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.BATCH_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CHANNEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.COLLECTION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.PARTITION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.SESSION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.FLUSH_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.SEGMENT_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.COLLECTION_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Reason.SEGMENT_STATE_CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.CHANNEL_DROPPED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.FENCED: grpc.StatusCode.ABORTED,
    Reason.GAP: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.OVERLAP: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.BELOW_CHECKPOINT: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.OUT_OF_ORDER: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.WRONG_MODE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.OWNED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.GC_PAUSED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.DEADLINE_EXPIRED: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.STORE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.COMMIT_OUTCOME_UNKNOWN: grpc.StatusCode.UNKNOWN,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}
"""Reasons that travel, each with its gRPC code. Reasons that are not here never leave their process."""


class DatacoordError(Exception):
    """Base of all errors of Datacoord.

    Args:
        message: a sentence for people that says what is wrong and what to do.
        metadata: the data to act on, by name; every dynamic part of the message is repeated here.
    """

    reason: ClassVar[Reason] = Reason.INTERNAL

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process borders of Spark by pickle; keyword arguments need help there."""
        return _rebuild, (type(self), self.message, self.metadata)


def _rebuild(kind: type[DatacoordError], message: str, metadata: dict[str, str]) -> DatacoordError:
    return kind(message, **metadata)


class UnauthenticatedError(DatacoordError):
    """The coordinator asks for a token, and the call shows none that counts."""

    reason = Reason.UNAUTHENTICATED


class PermissionDeniedError(DatacoordError):
    """The role of the caller's token may not make this call, whatever it is about."""

    reason = Reason.PERMISSION_DENIED


class InvalidFieldError(DatacoordError, ValueError):
    """A field of a request is malformed: the caller has a bug or passes on bad input."""

    reason = Reason.INVALID_FIELD


class PathNotAllowedError(DatacoordError, ValueError):
    """An object path does not follow the grammar or leaves the collection's root."""

    reason = Reason.PATH_NOT_ALLOWED


class BatchTooLargeError(DatacoordError, ValueError):
    """A call exceeds a limit that repeating will not change: split it."""

    reason = Reason.BATCH_TOO_LARGE


class ChannelNotFoundError(DatacoordError, LookupError):
    """No channel of this name was ever created."""

    reason = Reason.CHANNEL_NOT_FOUND


class CollectionNotFoundError(DatacoordError, LookupError):
    """No collection has this name."""

    reason = Reason.COLLECTION_NOT_FOUND


class PartitionNotFoundError(DatacoordError, LookupError):
    """The collection never had this partition."""

    reason = Reason.PARTITION_NOT_FOUND


class SessionNotFoundError(DatacoordError, LookupError):
    """The datanode's session is over: stop all graphs and register again."""

    reason = Reason.SESSION_NOT_FOUND


class FlushNotFoundError(DatacoordError, LookupError):
    """No flush has this number."""

    reason = Reason.FLUSH_NOT_FOUND


class SegmentNotFoundError(DatacoordError, LookupError):
    """No segment has this number."""

    reason = Reason.SEGMENT_NOT_FOUND


class SegmentStateConflictError(DatacoordError):
    """The segment is in a state that cannot become the one that was asked for."""

    reason = Reason.SEGMENT_STATE_CONFLICT


class CollectionExistsError(DatacoordError):
    """A collection of this name exists with another definition."""

    reason = Reason.COLLECTION_EXISTS


class ChannelDroppedError(DatacoordError):
    """The channel is dropped and does not come back: stop writing to it."""

    reason = Reason.CHANNEL_DROPPED


class FencedError(DatacoordError):
    """Another epoch owns the channel: drop the graph; delete nothing."""

    reason = Reason.FENCED


class GapError(DatacoordError):
    """The range starts beyond the lane's progress: rebuild the graph under a new epoch."""

    reason = Reason.GAP


class OverlapError(DatacoordError):
    """The range starts below and ends beyond the lane's progress: rebuild the graph, or plan the batch again."""

    reason = Reason.OVERLAP


class BelowCheckpointError(DatacoordError):
    """A new object holds rows at or below the checkpoint: the writer has a bug."""

    reason = Reason.BELOW_CHECKPOINT


class OutOfOrderError(DatacoordError):
    """A new batch of a sink has rows at or below the checkpoint of their channel: they are refused, never silently left out."""

    reason = Reason.OUT_OF_ORDER


class WrongModeError(DatacoordError):
    """The call is for channels of the other mode (MANAGED or CLAIMED)."""

    reason = Reason.WRONG_MODE


class OwnedError(DatacoordError):
    """Another name owns the channel and its lease lives: wait, or claim with `force`."""

    reason = Reason.OWNED


class GcPausedError(DatacoordError):
    """A round of the garbage collector was asked for while it is paused or held: resume it first."""

    reason = Reason.GC_PAUSED


class OverloadedError(DatacoordError):
    """The queue is full: repeat after `retry_delay_ms`."""

    reason = Reason.OVERLOADED


class DeadlineExpiredError(DatacoordError):
    """The call's time was over before its transaction began: certainly not done, repeat."""

    reason = Reason.DEADLINE_EXPIRED


class StoreUnavailableError(DatacoordError):
    """The database did not take the transaction: certainly not done, repeat."""

    reason = Reason.STORE_UNAVAILABLE


class CommitOutcomeUnknownError(DatacoordError):
    """The database was lost, or time was over, while it committed: perhaps done, repeat unchanged until it is known."""

    reason = Reason.COMMIT_OUTCOME_UNKNOWN


class InternalError(DatacoordError):
    """A bug of Datacoord; the log of the process that answered has the details."""

    reason = Reason.INTERNAL


class ConfigInvalidError(DatacoordError, ValueError):
    """A setting is unknown, malformed or out of range."""

    reason = Reason.CONFIG_INVALID


class DatabaseTooNewError(DatacoordError):
    """The database was migrated by a newer version: upgrade this one."""

    reason = Reason.DATABASE_TOO_NEW


class DatabaseNotMigratedError(DatacoordError):
    """The database has no or an older schema: run `datacoord migrate`."""

    reason = Reason.DATABASE_NOT_MIGRATED


class DatabaseInUseError(DatacoordError):
    """A coordinator seems to run on the database: stop it first."""

    reason = Reason.DATABASE_IN_USE


class PortInUseError(DatacoordError, OSError):
    """Another process listens on the port: choose another one or end that process."""

    reason = Reason.PORT_IN_USE


class SourceInvalidError(DatacoordError, ValueError):
    """What a channel reader was pointed at is not what it can read."""

    reason = Reason.SOURCE_INVALID


class SourceLostError(DatacoordError):
    """The source no longer holds the position to read from, or went away for good."""

    reason = Reason.SOURCE_LOST


class SourceUnavailableError(DatacoordError):
    """Reading the source failed for now: the datanode closes the reader, waits, and opens it again."""

    reason = Reason.SOURCE_UNAVAILABLE


class ObjectStoreError(DatacoordError, OSError):
    """Writing, reading or listing objects failed (disk full, no permission, bucket missing, …)."""

    reason = Reason.OBJECT_STORE_FAILED


class CoordinatorUnreachableError(DatacoordError):
    """The coordinator did not answer within the time the caller allows."""

    reason = Reason.COORDINATOR_UNREACHABLE


class JavaNotFoundError(DatacoordError):
    """Spark needs Java 17 or newer, and none was found."""

    reason = Reason.JAVA_NOT_FOUND


class SparkStoppedError(DatacoordError):
    """Spark was stopped, or has died, under a job: start a session, and the job in it again."""

    reason = Reason.SPARK_STOPPED


def _subclasses(kind: type[DatacoordError]) -> list[type[DatacoordError]]:
    return [kind, *(sub for child in kind.__subclasses__() for sub in _subclasses(child))]


BY_REASON: Mapping[Reason, type[DatacoordError]] = {kind.reason: kind for kind in _subclasses(DatacoordError)}


@dataclass(frozen=True)
class Refusal:
    """An error as data: what a rule answers without raising, so that it can stand in the result of one item of a batch.

    Attributes:
        reason: why.
        message: a sentence for people.
        metadata: the data to act on.
    """

    reason: Reason
    message: str
    metadata: Mapping[str, str]

    def to_error(self) -> DatacoordError:
        """The same refusal, to be raised."""
        return BY_REASON[self.reason](self.message, **self.metadata)


def to_status(error: DatacoordError | Refusal) -> status_pb2.Status:
    """Translates an error for the wire. A reason without a code is a bug and travels as INTERNAL without its message."""
    code = CODES.get(error.reason)
    if code is None:
        return to_status(InternalError(f"internal error {error.reason.value}; see the log of the coordinator"))
    status = status_pb2.Status(code=code.value[0], message=error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN, metadata=error.metadata)
    status.details.add().Pack(info)
    retry_delay_ms = error.metadata.get("retry_delay_ms")
    if retry_delay_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(retry_delay_ms))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def from_status(status: status_pb2.Status) -> DatacoordError:
    """Translates a status from the wire.

    One without our ErrorInfo (a proxy's, gRPC's own) becomes InternalError with the code in its metadata.
    """
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN:
            kind = BY_REASON.get(Reason(info.reason)) if info.reason in Reason.__members__ else None
            return (kind or InternalError)(status.message, **dict(info.metadata))
    return InternalError(status.message or "the call failed without saying why", grpc_code=status.code)
