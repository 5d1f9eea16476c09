"""The server that tests start: as root or not, and it must not outlive them."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from server.running_coordinator import ROOT
from support.waiting import eventually

_STARTS_ONE = """
import sys
from support.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.port, server._directory, flush=True)
sys.stdin.read()
"""
_ENVIRONMENT = {"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin"}


def _prefixes() -> list[list[str]]:
    """Before the command: nothing, and if the tests are root, what makes it somebody else who can still reach this Python."""
    found: list[list[str]] = [[]]
    if os.geteuid() != 0:
        return found
    for prefix in (["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"], ["unshare", "--user"]):
        with suppress(OSError):
            command = [*prefix, sys.executable, "-c", "import os, psycopg; assert os.geteuid() != 0"]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return [*found, prefix]
    return found


PREFIXES = _prefixes()


def are_enough(prefixes: Sequence[list[str]], environment: Mapping[str, str], *, is_root: bool) -> bool:
    """Whether root and somebody else are tried where tests are root; on somebody's own machine one of them is enough."""
    return not is_root or len(prefixes) >= 2 or environment.get("CI") != "true"


def test_root_alone_proves_nothing_where_the_suite_must_pass() -> None:
    """A machine that loses its `setpriv` would go on to say that tests of those who are not root leave nothing behind."""
    alone: list[list[str]] = [[]]
    both = [*alone, ["setpriv"]]

    assert [are_enough(found, {"CI": "true"}, is_root=True) for found in (alone, both)] == [False, True]
    assert are_enough(alone, {}, is_root=True)
    assert are_enough(alone, {"CI": "true"}, is_root=False)


def test_where_the_suite_must_pass_somebody_else_than_root_is_tried_too() -> None:
    """Most who run the tests are not root, and the server of theirs is started in another way."""
    assert are_enough(PREFIXES, os.environ, is_root=os.geteuid() == 0), (
        "the tests are root, and neither `setpriv` nor `unshare --user` makes a process that is not: install util-linux, or allow "
        "the container CAP_SETUID and CAP_SETGID, or run the tests as somebody else"
    )


@pytest.mark.parametrize("prefix", PREFIXES, ids=lambda prefix: prefix[0] if prefix else "self")
def test_a_server_goes_with_the_process_that_started_it_however_that_dies(prefix: list[str]) -> None:
    """Every run of the tests that is killed would leave a server and its files on the machine, for ever."""
    owner = subprocess.Popen(
        [*prefix, sys.executable, "-c", _STARTS_ONE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT / "tests",
        env=_ENVIRONMENT,
    )
    assert owner.stdout is not None
    port, directory = owner.stdout.readline().split()
    connect = f"host=127.0.0.1 port={port} user=datacoord dbname=postgres connect_timeout=20"
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
