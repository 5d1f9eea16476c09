"""The gRPC process; `coordinator.front.processes` starts it."""

import os
import socket
import sys

import uvloop

from coordinator.front.process import serve


def main() -> None:
    """Serves over the socket whose number is the argument, until its other end says stop or is gone."""
    uvloop.run(serve(socket.socket(fileno=int(sys.argv[1]))))
    sys.stdout.flush()
    sys.stderr.flush()
    # gRPC's threads may wait for connections that nobody needs any more.
    os._exit(0)


if __name__ == "__main__":
    main()
