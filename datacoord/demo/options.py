"""What the person who runs the demo asked for."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DemoOptions:
    """What the person asked for.

    Attributes:
        source: "git" or "generated".
        repository: the git repository.
        rows: operations of the generator.
        kill: kill processes on the way.
        datanodes: how many.
        directory: where everything goes; what an earlier demo left there is removed.
        seed: of the generator.
    """

    source: str
    repository: Path
    rows: int
    kill: bool
    datanodes: int
    directory: Path
    seed: int
