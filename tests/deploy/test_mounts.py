"""What containers see of a file that is replaced outside: real bind mounts, as the compose file and any engine makes them."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from security.pki import Authority

from datacoord.cli import main
from datacoord.tokens import new_token, tokens_file_entry

INSIDE = """
import sys
from pathlib import Path
from coordinator.rpc.authentication import Authenticator
from coordinator.rpc.transport_security import ServerCertificates
from datacoord.errors import DatacoordError
from datacoord.tls_files import TlsFiles

directory = Path(sys.argv[1])
seconds = [0.0]
tokens = Authenticator(directory / "tokens.toml", monotonic_seconds=lambda: seconds[0])
certificates = ServerCertificates(TlsFiles("", str(directory / "coordinator.crt"), str(directory / "coordinator.key")))
print("started", flush=True)
for line in sys.stdin:
    seconds[0] += 5
    if line.strip() == "certificate":
        print("answer:", "new" if certificates.newer() else "old", flush=True)
        continue
    try:
        print("answer:", tokens.identify([("authorization", f"Bearer {line.strip()}")]).name, flush=True)
    except DatacoordError as error:
        print("answer:", error.reason.value, flush=True)
"""
"""A coordinator's eyes on its files; answers a line for each token it is shown."""

FILES = ("tokens.toml", "coordinator.crt", "coordinator.key")
Ask = Callable[[str], str]


@contextmanager
def container(outside: Path, inside: Path, mounted: tuple[str, ...]) -> Iterator[Ask]:
    """A coordinator's eyes in a mount namespace of their own.

    Args:
        outside: where the operator works.
        inside: where the container sees it.
        mounted: what is mounted: names of files, or "." for the directory.
    """
    inside.mkdir()
    lines = []
    for name in mounted:
        if name != ".":
            (inside / name).touch()
        lines.append(f"mount --bind {shlex.quote(str(outside / name))} {shlex.quote(str(inside / name))}")
    lines.append(f"exec {shlex.join([sys.executable, '-c', INSIDE, str(inside)])}")
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    process = subprocess.Popen(
        ["unshare", *user, "--mount", "sh", "-ec", "\n".join(lines)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(line: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        while not (answer := process.stdout.readline()).startswith("answer: "):
            assert answer, "it has ended"  # else a line of the log
        return answer.removeprefix("answer: ").strip()

    with process:
        try:
            assert process.stdout.readline().strip() == "started"
            yield ask
        finally:
            process.stdin.close()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """The operator's directory, with a tokens file and a certificate."""
    directory = tmp_path / "outside"
    directory.mkdir()
    Authority(directory).issue("coordinator")
    return directory


def replace(path: Path, content: str) -> None:
    """As editors do, and `datacoord token new --add-to`: another file takes the name."""
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.replace(path)


@pytest.mark.timeout(120)
def test_a_token_that_is_taken_back_counts_no_more_in_a_container(tmp_path: Path, outside: Path) -> None:
    """With a mount of the file alone the container keeps the old one for ever: whoever stole the token stays in, unheard."""
    stolen = new_token()
    replace(outside / "tokens.toml", tokens_file_entry("stolen", "admin", stolen, None))
    with container(outside, tmp_path / "inside", (".",)) as ask:
        assert ask(stolen) == "stolen"
        arguments = ["token", "new", "--name=fresh", "--role=reader", "--add-to", str(outside / "tokens.toml")]
        fresh = CliRunner().invoke(main, arguments).stdout.strip()
        assert ask(fresh) == "fresh"
        replace(outside / "tokens.toml", tokens_file_entry("fresh", "reader", fresh, None))
        assert ask(stolen) == "UNAUTHENTICATED"
        assert ask("certificate") == "old"
        Authority(outside, "next").issue("coordinator", files="next")
        for end in ("key", "crt"):
            (outside / f"next.{end}").replace(outside / f"coordinator.{end}")
        assert ask("certificate") == "new"


@pytest.mark.timeout(120)
def test_a_mount_of_one_file_shows_the_old_one_for_ever(tmp_path: Path, outside: Path) -> None:
    """The reason for the directory. If this fails, engines or kernels have changed, and the page may say so."""
    stolen = new_token()
    replace(outside / "tokens.toml", tokens_file_entry("stolen", "admin", stolen, None))
    with container(outside, tmp_path / "inside", FILES) as ask:
        replace(outside / "tokens.toml", tokens_file_entry("other", "admin", new_token(), None))
        assert ask(stolen) == "stolen"
        for name in FILES[1:]:
            (outside / name).rename(outside / f"{name}.old")
        Authority(outside, "next").issue("coordinator")
        assert ask("certificate") == "old"
