"""`datacoord health`: asks a coordinator whether it can do its work; for orchestrators and people."""

import sys
import urllib.error
import urllib.request

import click


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
def health(*, web_address: str, live: bool, timeout_seconds: float) -> None:
    """Ask a coordinator whether it serves: exit status 0 if it does, 1 with a sentence if not."""
    url = f"http://{web_address}/{'healthz' if live else 'readyz'}"
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:
            click.echo(answer.read().decode().strip() or "ok")
    except urllib.error.HTTPError as error:
        click.echo(f"datacoord: {url} answers {error.code}: {error.read().decode(errors='replace').strip()}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"datacoord: {url} does not answer: {getattr(error, 'reason', error)}", err=True)
        sys.exit(1)
