"""Schema changes as TiDB stores them: a job as JSON, in a list of the metadata or in a column of the job table."""

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from datacoord.errors import SourceInvalidError
from datanode_client.puller.events import OpType, RawKVEntry

JOB_META_COLUMN_ID = 5
"""Column `job_meta` of mysql.tidb_ddl_job (job_id, reorg, schema_ids, table_ids, job_meta, type, processing)."""

_ROW_FORMAT_V2 = 128
_ROW_FLAG_LARGE = 1


class JobState(IntEnum):
    """How far a job is (TiDB's model.JobState)."""

    DONE = 4
    SYNCED = 6
    """Done, and every TiDB server knows the new schema."""


class MalformedJobError(SourceInvalidError):
    """A row of the job queues is not what TiDB writes there."""


@dataclass(frozen=True, slots=True)
class DDLJob:
    """A schema change that has taken effect.

    Attributes:
        id: of the job.
        type: TiDB's model.ActionType.
        state: DONE or SYNCED.
        schema_id: database.
        table_id: table; 0 for changes of a database.
        schema_name: its name.
        table_name: its name.
        query: the statement.
        start_ts: when the job began.
        finished_ts: when it took effect: the commit timestamp of the row.
        schema_version: of the schema that results.
        detail: the whole job, decoded.
    """

    id: int
    type: int
    state: JobState
    schema_id: int
    table_id: int
    schema_name: str
    table_name: str
    query: str
    start_ts: int
    finished_ts: int
    schema_version: int
    detail: dict[str, Any]


def parse_ddl_job(entry: RawKVEntry, job_meta_column_id: int = JOB_META_COLUMN_ID) -> DDLJob | None:
    """Reads a change of one of the job queues.

    Returns:
        the job; None if the change finishes none: jobs leave a queue by a delete, and are rewritten at every step.

    Raises:
        MalformedJobError: the value is no job.
    """
    if entry.op_type is not OpType.PUT:
        return None
    from_list = entry.key.startswith(b"m")
    meta = entry.value if from_list else decode_row_column(entry.value, job_meta_column_id)
    try:
        detail = json.loads(meta or b"")
        state, info = detail["state"], detail.get("binlog") or {}
        if state not in {JobState.DONE, JobState.SYNCED}:
            return None
        return DDLJob(
            id=detail["id"],
            type=detail["type"],
            state=JobState(state),
            schema_id=detail.get("schema_id", 0),
            table_id=detail.get("table_id", 0),
            schema_name=detail.get("schema_name", ""),
            table_name=detail.get("table_name", ""),
            query=detail.get("query", ""),
            start_ts=detail.get("start_ts", entry.start_ts),
            finished_ts=entry.commit_ts,
            schema_version=info.get("SchemaVersion", 0),
            detail=detail,
        )
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        message = (
            f"The value at key {entry.key.hex()} is no DDL job ({error!r}); check that the source is a TiDB cluster."
        )
        raise MalformedJobError(message, key=entry.key.hex(), commit_ts=entry.commit_ts) from error


def decode_row_column(value: bytes, column_id: int) -> bytes | None:
    """One column of a row in TiDB's row format 2.

    `version u8 | flags u8 | not-null count u16 | null count u16 | ids, not-null then null | end offsets | values`, little endian;
    ids are u8 and offsets u16, or both u32 where the flags say large (TiDB's design document 2018-07-19-row-format).

    Returns:
        the raw value; None if the column is null or not there.

    Raises:
        MalformedJobError: the value has another format, or is cut off.
    """
    try:
        version, flags, not_null, null = struct.unpack_from("<BBHH", value)
        if version != _ROW_FORMAT_V2:
            raise MalformedJobError(
                f"Row format {version} is not supported; set tidb_row_format_version = 2.", version=version
            )
        large = bool(flags & _ROW_FLAG_LARGE)
        ids = struct.unpack_from(f"<{not_null}{'I' if large else 'B'}", value, 6)
        offsets_at = 6 + (not_null + null) * (4 if large else 1)
        ends = struct.unpack_from(f"<{not_null}{'I' if large else 'H'}", value, offsets_at)
    except struct.error as error:
        raise MalformedJobError(f"A row of {len(value)} bytes is cut off.", length=len(value)) from error
    if column_id not in ids:
        return None
    index = ids.index(column_id)
    data_at = offsets_at + not_null * (4 if large else 2)
    return value[data_at + (ends[index - 1] if index else 0) : data_at + ends[index]]
