"""How much memory the datanodes of a fire take, while it burns."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from support.waiting import joined

from datacoord.errors import DatacoordError
from datacoord.v1 import admin_pb2

LOOK_SECONDS = 0.2


@dataclass(slots=True)
class Taken:
    """Resident memory of one process, in bytes.

    Attributes:
        first: its peak when it was first seen: an interpreter with its libraries, and hardly a row.
        peak: its peak when it was last seen.
    """

    first: int
    peak: int


class Memory:
    """Looks at every datanode that lives, again and again. The kernel keeps the peaks between two looks.

    Args:
        living: the sessions that live now.
        is_datanode: whether a process is one, and not another that has got its number.
    """

    def __init__(self, living: Callable[[], list[admin_pb2.DataNodeInfo]], is_datanode: Callable[[int], bool]) -> None:
        self._living = living
        self._is_datanode = is_datanode
        self.taken: dict[tuple[int, int], Taken] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Looks around a block."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(LOOK_SECONDS):
                with contextlib.suppress(DatacoordError):  # the coordinator is killed now and then
                    for node in self._living():
                        self._see(node)

        thread = threading.Thread(target=look, name="memory of datanodes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            joined(thread)

    def grown_most(self) -> int:
        """Bytes by which the worst of them grew after it was first seen."""
        return max(taken.peak - taken.first for taken in self.taken.values())

    def _see(self, node: admin_pb2.DataNodeInfo) -> None:
        if not self._is_datanode(node.pid):
            return
        with contextlib.suppress(OSError, IndexError):  # it may end under the look
            status = Path(f"/proc/{node.pid}/status").read_text()
            peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
            taken = self.taken.setdefault((node.node_id, node.pid), Taken(peak, peak))
            taken.peak = max(taken.peak, peak)
