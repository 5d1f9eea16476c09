"""What sessions of datanodes said last, as packed as it came: unpacked here and nowhere else."""

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.engine import Connection

from coordinator.store.database_kind import DatabaseKind
from coordinator.store.tables import datanode_reports
from coordinator.store.transaction import chunks
from datacoord.v1 import data_coord_pb2

Messages = dict[str, data_coord_pb2.DataNodeTtMsg]
"""What a session said of its channels, by name."""


def read(
    connection: Connection, kind: DatabaseKind, node_ids: Iterable[int]
) -> dict[int, data_coord_pb2.ReportDataNodeTtMsgsRequest]:
    """The last reports of sessions; those that have not reported are absent."""
    found = {}
    for chunk in chunks(sorted(node_ids), kind.rows_per_statement):
        statement = select(datanode_reports).where(datanode_reports.c.node_id.in_(chunk))
        for row in connection.execute(statement):
            found[row.node_id] = data_coord_pb2.ReportDataNodeTtMsgsRequest.FromString(bytes(row.report))
    return found


def read_messages(connection: Connection, kind: DatabaseKind, node_ids: Iterable[int]) -> dict[int, Messages]:
    """The same, by channel."""
    return {
        node_id: {message.channel_name: message for message in report.msgs}
        for node_id, report in read(connection, kind, node_ids).items()
    }
