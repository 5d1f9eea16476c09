"""Switches failpoints of other processes on and off, by the files that `datacoord.failpoints` looks for."""

from pathlib import Path

OBJECTS_WRITTEN = "datanode.objects_written"
AFTER_COMMIT = "coordinator.after_commit"


class FailpointFiles:
    """The directory that every process of the demo watches.

    Args:
        directory: it; made if it does not exist.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory

    def hold(self, point: str) -> None:
        """Holds every process that reaches the point from now on."""
        (self.directory / f"{point}.hold").touch()

    def release(self, point: str) -> None:
        """Lets held processes go on."""
        (self.directory / f"{point}.hold").unlink(missing_ok=True)

    def held(self, point: str) -> set[int]:
        """Process ids that are held at the point now. A process that was killed while held leaves its mark: see `forget`."""
        return {int(path.suffix[1:]) for path in self.directory.glob(f"{point}.held.*")}

    def forget(self, point: str, pid: int) -> None:
        """Removes the mark of a process that was killed while it was held."""
        (self.directory / f"{point}.held.{pid}").unlink(missing_ok=True)
