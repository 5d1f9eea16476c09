"""The quickstart, run as it stands: what a new user types first must work."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from doc_pages import ROOT, text

BLOCK = re.compile(r"^```sh quickstart\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def end_session(leader: int) -> None:
    """Kills whatever a script has left: with job control (`set -m`) each of its jobs is a process group of its own."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(ProcessLookupError):
                if os.getsid(int(entry.name)) == leader:
                    os.kill(int(entry.name), signal.SIGKILL)


@pytest.mark.spark
@pytest.mark.timeout(360)
def test_the_quickstart_works_as_it_is_written(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> None:
    """A first step that fails is the last one. Only ports are others than written: this machine may use those."""
    blocks = BLOCK.findall(text("docs/quickstart.md"))
    assert len(blocks) == 6
    port, web_port = unused_tcp_port_factory(), unused_tcp_port_factory()
    script = "set -em\n" + "".join(blocks).replace("127.0.0.1:13333", f"127.0.0.1:{port}")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("DATACOORD_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "DATACOORD_GRPC_PORT": str(port),
        "DATACOORD_WEB_PORT": str(web_port),
        "DATACOORD_ADDRESS": f"127.0.0.1:{port}",
        "DATACOORD_WEB_ADDRESS": f"127.0.0.1:{web_port}",
    }
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        end_session(process.pid)
        process.wait(10)
    assert process.returncode == 0, output
    assert "first: everything is registered" in output
    assert "Nothing is stuck" in output
    rows = re.search(r"^(\d+) rows; ", output, re.MULTILINE)
    assert rows is not None
    assert int(rows.group(1)) > 1000, output
