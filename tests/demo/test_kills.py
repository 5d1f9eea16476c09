"""The kills of the demo, against what a coordinator would show: they happen at the moment promised, or they say why not."""

from pathlib import Path
from typing import Any, cast

import pytest

from datacoord.client import CoordinatorClient
from datacoord.demo.failpoint_files import OBJECTS_WRITTEN, FailpointFiles
from datacoord.demo.kills import HeadLimit, Saboteur
from datacoord.demo.observe import Observer
from datacoord.demo.services import CoordinatorProcess
from datacoord.errors import SourceInvalidError
from datacoord.v1 import admin_pb2, data_coord_pb2

PID = 4_194_305
"""Beyond the largest process id of Linux: nothing can be killed by it."""


class Shown:
    """Shows one channel, held by one datanode, as a coordinator would; each look takes the next of the given loads."""

    def __init__(self, *loads: tuple[int, int, int]) -> None:
        self.loads = list(loads)

    def list_channels(self, _name: str) -> list[admin_pb2.ChannelInfo]:
        return [admin_pb2.ChannelInfo(channel_name="c", epoch=1, node_id=1, report=self._message())]

    def list_datanodes(self, **_filters: Any) -> list[admin_pb2.DataNodeInfo]:
        node = admin_pb2.DataNodeInfo(
            node_id=1, pid=PID, state=data_coord_pb2.DATA_NODE_STATE_HEALTHY, msgs=[self._message()]
        )
        if len(self.loads) > 1:
            self.loads.pop(0)
        return [node]

    def _message(self) -> data_coord_pb2.DataNodeTtMsg:
        consumed, buffered, in_flight = self.loads[0]
        return data_coord_pb2.DataNodeTtMsg(
            channel_name="c", epoch=1, timestamp=consumed, buffered_rows=buffered, syncs_in_flight=in_flight
        )


def saboteur(shown: Shown, directory: Path) -> Saboteur:
    """A saboteur that sees what is shown, of an input of 100 messages."""
    failpoints = FailpointFiles(directory / "failpoints")
    (failpoints.directory / f"{OBJECTS_WRITTEN}.held.{PID}").touch()
    return Saboteur(
        Observer(cast("CoordinatorClient", shown), "t", lambda _seen: None),
        failpoints,
        HeadLimit(directory / "limit", 100),
        cast("CoordinatorProcess", None),
        lambda _sentence: None,
    )


def test_an_input_too_small_for_kills_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Of a history of three commits nothing is ever in a buffer beside a sync: waiting for it ended in a traceback."""
    with pytest.raises(SourceInvalidError, match="KILL=0"):
        saboteur(Shown((25, 0, 0), (25, 3, 0), (50, 3, 0), (50, 0, 1)), tmp_path).kill_datanode()


def test_buffers_that_are_not_cut_yet_are_waited_for(tmp_path: Path) -> None:
    """The moment comes when a full or a stale lane is cut, later than the last row is read."""
    shown = Shown((25, 0, 0), (25, 0, 0), (50, 9, 0), (50, 9, 0), (50, 4, 1))
    with pytest.raises(ProcessLookupError):  # the kill itself, of a process that is none
        saboteur(shown, tmp_path).kill_datanode()
    assert len(shown.loads) == 1
