"""What the demo shows while it runs: a bar on a terminal, a line now and then elsewhere. All of it on standard error."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from datacoord.demo.observe import Seen
from datacoord.progress_lines import ProgressLines


class Progress(ProgressLines):
    """Shows how far the channels are.

    Args:
        console: where to.
        description: what is read.
        last_timestamp: the end of the input.
    """

    def __init__(self, console: Console, description: str, last_timestamp: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        super().__init__(console, columns, description=f"landing {description}", total=last_timestamp)
        self._last_timestamp = last_timestamp

    def show(self, seen: Seen) -> None:
        """Shows how far the checkpoints are on average, and what is on the way."""
        if not seen.channels:
            return
        mean = sum(channel.checkpoint.timestamp for channel in seen.channels.values()) // len(seen.channels)
        consumed = seen.metric("datanode_consumed_rows_total")
        nodes = seen.alive()
        buffered = sum(msg.buffered_rows for node in nodes for msg in node.msgs)
        in_flight = sum(msg.syncs_in_flight for node in nodes for msg in node.msgs)
        detail = f"{consumed:,} rows read, {buffered:,} in buffers, {in_flight} syncs under way, {len(nodes)} datanodes"
        line = f"{mean / self._last_timestamp:4.0%} registered; {detail}"
        self.update(detail, line=line, completed=mean)
