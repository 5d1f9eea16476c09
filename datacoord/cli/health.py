"""`datacoord health`: asks a coordinator whether it can do its work; for orchestrators and people."""

import http.client
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

import click

from datacoord.cli.output import FOUND_STATUS, output_option, print_json

POLL_SECONDS = 0.2

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Past any proxy of the environment: it would answer for the coordinator."""


@click.command()
@click.option(
    "--web-address",
    envvar="DATACOORD_WEB_ADDRESS",
    default="127.0.0.1:13334",
    show_default=True,
    help="host:port of the coordinator's web port.",
)
@click.option("--live", is_flag=True, help="Only whether the process lives; its database may be away.")
@click.option(
    "--timeout", "timeout_seconds", type=click.FloatRange(min=0.1), default=3.0, show_default=True, help="Seconds."
)
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Ask again for so many seconds until the answer is yes.",
)
@output_option
def health(*, web_address: str, live: bool, timeout_seconds: float, wait_seconds: float, output: str) -> None:
    """Ask a coordinator whether it serves, and say why not.

    Exit status 0: it does; 3: it answers, and says no (it drains, or its database is away); 1: it does not answer; 2: the command
    was wrong.
    """
    page = "healthz" if live else "readyz"
    deadline = time.monotonic() + wait_seconds
    while not (health := ask(web_address, page, timeout_seconds)).well and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if output == "json":
        record = {"web_address": web_address, "page": page, "well": health.well, "status": health.status}
        print_json([{**record, "problem": health.problem}])
    elif health.well:
        click.echo("ok" if live else "ready")
    if not health.well:
        click.echo(f"datacoord: {health.problem}", err=True)
        sys.exit(FOUND_STATUS if health.status else 1)


@dataclass(frozen=True, slots=True)
class Health:
    """An answer of a coordinator, or that there was none.

    Attributes:
        status: of HTTP; 0 = it did not answer.
        problem: what is wrong; empty = nothing.
    """

    status: int
    problem: str

    @property
    def well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem


def ask(web_address: str, page: str, timeout_seconds: float) -> Health:
    """Asks once.

    Args:
        web_address: host:port of its web port.
        page: which question.
        timeout_seconds: how long to wait for the answer.
    """
    url = f"http://{web_address}/{page}"
    try:
        with _OPENER.open(url, timeout=timeout_seconds) as answer:
            return Health(answer.status, "")
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace").strip()
        return Health(error.code, f"{url} answers {error.code}: {said}")
    except (OSError, http.client.HTTPException) as error:
        return Health(0, f"{url} does not answer: {getattr(error, 'reason', error)}")
