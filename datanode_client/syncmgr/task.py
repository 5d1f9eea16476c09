"""One sync: a range of a lane on its way from the buffers to being registered."""

import asyncio
from dataclasses import dataclass

from datacoord.errors import InternalError
from datacoord.positions import Position
from datacoord.v1 import data_coord_pb2
from datanode_client.binlog.writer import RangeRows
from datanode_client.faults import Fault
from datanode_client.writebuffer.policies import SyncReason


@dataclass(slots=True)
class SyncTask:
    """A range that was cut.

    Attributes:
        lane: its rows, and the objects written of them.
        pins: pins by unique id that stay until the range is answered; more than one after joining.
        rows: rows to write, inserts and deletes.
        size_bytes: memory they take.
        reason: why the lane was cut.
        attempt: the latest attempt to write it, in a worker thread; its result is how long that took, in seconds.
        submitted: when it was cut, on the process's monotonic clock, in seconds.
        fault: why its objects cannot be written, while that is so.
    """

    lane: RangeRows
    pins: dict[int, Position]
    rows: int
    size_bytes: int
    reason: SyncReason
    attempt: asyncio.Future[float] | None = None
    submitted: float = 0.0
    fault: Fault | None = None

    @property
    def partition_id(self) -> int:
        """The lane."""
        return self.lane.partition_id

    def join(self, later: "SyncTask") -> None:
        """Takes over the adjacent later range of the same lane: one range, one set of objects. Only before anything is written."""
        if self.lane.timestamp_to != later.lane.timestamp_from or self.lane.written:
            raise InternalError(
                f"range to {self.lane.timestamp_to} of lane {self.partition_id} cannot take over the range from "
                f"{later.lane.timestamp_from}: it is written already or not adjacent"
            )
        self.lane.timestamp_to = later.lane.timestamp_to
        for kind, batches in later.lane.rows.items():
            self.lane.rows.setdefault(kind, []).extend(batches)
        self.pins.update(later.pins)
        self.rows += later.rows
        self.size_bytes += later.size_bytes

    def release_rows(self) -> None:
        """Frees the memory of the rows: they are durable."""
        self.lane.rows = {}

    def to_proto(self) -> data_coord_pb2.LaneBinlogs:
        """The range and its objects as they stand in a save."""
        return self.lane.to_proto()
