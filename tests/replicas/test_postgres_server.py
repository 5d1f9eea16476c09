"""The server that tests start: as root or not, and it must not outlive them."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from server.running_coordinator import ROOT, eventually

_STARTS_ONE = """
import sys
from support.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.port, server._directory, flush=True)
sys.stdin.read()
"""
_ENVIRONMENT = {"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin"}


def _users() -> list[str | None]:
    """Who can run the tests here: whoever does, and if that is root, somebody else too who can reach this Python."""
    if os.geteuid() != 0:
        return [None]
    reaches = subprocess.run([sys.executable, "-c", "import psycopg"], user="nobody", capture_output=True, check=False)
    return [None, *(["nobody"] if reaches.returncode == 0 else [])]


@pytest.mark.parametrize("user", _users())
def test_a_server_goes_with_the_process_that_started_it_however_that_dies(user: str | None) -> None:
    """Every run of the tests that is killed would leave a server and its files on the machine, for ever."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _STARTS_ONE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT / "tests",
        env=_ENVIRONMENT,
        user=user,
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
