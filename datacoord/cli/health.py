"""`datacoord health`: asks a coordinator whether it can do its work; for orchestrators and people."""

import http.client
import sys
import time
import urllib.error
import urllib.request

import click

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
def health(*, web_address: str, live: bool, timeout_seconds: float, wait_seconds: float) -> None:
    """Ask a coordinator whether it serves: exit status 0 if it does, 1 with a sentence if not."""
    page = "healthz" if live else "readyz"
    deadline = time.monotonic() + wait_seconds
    while (problem := ask(web_address, page, timeout_seconds)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if problem:
        click.echo(f"datacoord: {problem}", err=True)
        sys.exit(1)
    click.echo("ok" if live else "ready")


def ask(web_address: str, page: str, timeout_seconds: float) -> str:
    """Asks once; what is wrong, or empty."""
    url = f"http://{web_address}/{page}"
    try:
        with _OPENER.open(url, timeout=timeout_seconds):
            return ""
    except urllib.error.HTTPError as error:
        return f"{url} answers {error.code}: {error.read().decode(errors='replace').strip()}"
    except (OSError, http.client.HTTPException) as error:
        return f"{url} does not answer: {getattr(error, 'reason', error)}"
