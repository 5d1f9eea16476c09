"""What a datanode job asks of the coordinator, from the driver."""

import contextlib

from datacoord.client import CoordinatorClient
from datacoord.errors import SessionNotFoundError
from datacoord.v1 import data_coord_pb2


class JobClient(CoordinatorClient):
    """A client that can also ask datanodes to stop."""

    def ask_to_stop(self, job: str) -> None:
        """Asks every datanode of a job to drain, hand back its channels and end. They hear it at their next heartbeat.

        A driver cannot reach into its tasks, but anybody may report for a session: the last report is repeated, with `stopping`.
        """
        for node in self.list_datanodes(job):
            if node.state != data_coord_pb2.DATA_NODE_STATE_STOPPING:
                request = data_coord_pb2.ReportDataNodeTtMsgsRequest(
                    node_id=node.node_id, msgs=node.msgs, metrics=node.metrics, stopping=True
                )
                with contextlib.suppress(SessionNotFoundError):  # it ended meanwhile
                    self._call(self._data_coord().ReportDataNodeTtMsgs, request)
