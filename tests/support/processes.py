"""Servers that go with the process that started them, however that ends."""

import signal
import subprocess
from pathlib import Path

_SCRIPT = """
read -r _ # until the other end of the pipe is closed: by its owner's death, for nothing is ever written
kill -"$1" "$2" 2>/dev/null
while kill -0 "$2" 2>/dev/null; do sleep 0.05; done
rm -rf "$3"
"""
"""Not a death signal: that comes when the *thread* that started the server ends, and is lost with a change of user."""

_END_SECONDS_MAX = 60.0


class Watcher:
    """Ends a server and removes its files when this process dies without doing so.

    Args:
        process: of the server.
        directory: its files.
        how: what ends it.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", directory: Path, how: signal.Signals) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "watcher", str(int(how)), str(process.pid), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """The server is looked after again."""
        self._shell.kill()
        self._shell.communicate(timeout=_END_SECONDS_MAX)
