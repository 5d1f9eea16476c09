"""The server that tests start: it must not outlive them."""

import subprocess
import sys
from pathlib import Path

import psycopg
from server.running_coordinator import ROOT, eventually

_STARTS_ONE = """
import sys
from support.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.port, server._directory, flush=True)
sys.stdin.read()
"""


def test_a_server_goes_with_the_process_that_started_it_however_that_dies() -> None:
    """Every run of the tests that is killed would leave a server and its files on the machine, for ever."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _STARTS_ONE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT / "tests",
        env={"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin"},
    )
    assert owner.stdout is not None
    port, directory = owner.stdout.readline().split()
    connect = f"host=127.0.0.1 port={port} user=datacoord dbname=postgres connect_timeout=2"
    psycopg.connect(connect).close()
    owner.kill()
    owner.communicate()

    def gone() -> bool:
        try:
            psycopg.connect(connect).close()
        except psycopg.OperationalError:
            return not Path(directory).exists()
        return False

    eventually(gone)
