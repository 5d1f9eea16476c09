"""Named points where a test or the demo may hold or end a process, to make the worst moment happen on purpose.

Off unless the environment names a directory (`DATACOORD_FAILPOINT_DIR`); then a file `<point>.hold` there holds every process
that reaches the point until the file is gone, and a file `<point>.kill` ends the process that reaches it with SIGKILL. A process
that is held says so by a file `<point>.held.<pid>`. The idea is etcd's gofail and FoundationDB's BUGGIFY.
"""

import os
import signal
import time
from pathlib import Path

ENVIRONMENT_VARIABLE = "DATACOORD_FAILPOINT_DIR"
_POLL_SECONDS = 0.01


def are_on() -> bool:
    """Whether this process may be held at a point: then nothing that others wait for should pass one."""
    return bool(os.environ.get(ENVIRONMENT_VARIABLE))


def hit(point: str) -> None:
    """Passes a point; blocks or ends this process when a file asks for it. Costs a dictionary look-up when switched off."""
    directory = os.environ.get(ENVIRONMENT_VARIABLE)
    if not directory:
        return
    base = Path(directory)
    if (base / f"{point}.kill").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    hold = base / f"{point}.hold"
    if not hold.exists():
        return
    held = base / f"{point}.held.{os.getpid()}"
    held.touch()
    try:
        while hold.exists():
            if (base / f"{point}.kill").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
    finally:
        held.unlink(missing_ok=True)
