"""The commands of docs/security.md, run as they stand there: whoever is in a hurry copies them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from server.running_coordinator import ROOT, CoordinatorProcess, environment

from security.raw import METHODS

PAGE = (ROOT / "docs" / "security.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


def block(beginning: str) -> str:
    """The one block that begins so."""
    (found,) = (text for text in BLOCKS if text.startswith(beginning))
    return str(found)


def shell(commands: str, directory: Path) -> str:
    """Runs commands with `datacoord` of this source tree on the path; what they wrote."""
    program = directory / "bin" / "datacoord"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m datacoord.cli "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-euc", commands],
        cwd=directory,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_who_follows_the_page_ends_with_encryption_and_tokens(tmp_path: Path) -> None:
    """A command that is wrong here is replaced by one that is open."""
    shell(block("openssl req -x509") + block("datacoord token new"), tmp_path)
    serve = shlex.split(block("datacoord serve --host"))[2:]
    named = {name for name in serve if (tmp_path / name).is_file()}
    assert named == {"coordinator.crt", "coordinator.key", "tokens.toml"}
    flags = [str(tmp_path / word) if word in named else word for word in serve]
    with CoordinatorProcess(tmp_path / "data", *flags) as process:
        port = process.address.rpartition(":")[2]
        ask = block("datacoord channels --address").replace("localhost:13333", f"localhost:{port}")
        shell(ask, tmp_path)
        assert '"outcome": "UNAUTHENTICATED"' not in process.output()
        shell(ask.replace("operator.token", "reports.token"), tmp_path)
    assert "grpc_is_not_encrypted" not in process.output()
    assert oct((tmp_path / "operator.token").stat().st_mode)[-3:] == "600"


def test_the_other_commands_name_options_that_are_there() -> None:
    """The rest is run by being parsed: they differ from those above in what they leave out."""
    import click

    from datacoord.cli import main

    for text in BLOCKS:
        for line in re.findall(r"(?m)^datacoord (.+?)(?: >.*)?$", text):
            words = shlex.split(line)
            command: click.Command = main
            context = click.Context(main)
            while isinstance(command, click.Group) and words and not words[0].startswith("-"):
                found = command.get_command(context, words[0])
                assert found is not None, line
                command, words = found, words[1:]
            command.make_context("x", words, resilient_parsing=False).close()
    roles = (ROOT / "docs" / "reference" / "rpcs.md").read_text()
    assert all(f"`{name.partition('.')[2]}`" in roles for name in METHODS)


def test_the_page_of_calls_says_who_may(tmp_path: Path) -> None:
    """The table in the code decides; the page is what people read."""
    from coordinator.rpc.roles import ROLES

    page = (ROOT / "docs" / "reference" / "rpcs.md").read_text()
    for service, methods in ROLES.items():
        section = page.partition(f"\n## {service}")[2].partition("\n## ")[0]
        shown = dict(re.findall(r"(?m)^\| `(\w+)`.*\| (\w+) \|$", section))
        assert shown == {name: role.word for name, role in methods.items()}
