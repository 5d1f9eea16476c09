"""`datacoord version`."""

import platform

import click

from datacoord.cli.output import output_option, print_json
from datacoord.version import version as datacoord_version


@click.command()
@output_option
def version(output: str) -> None:
    """Show the versions of Datacoord and of what matters to it."""
    import grpc
    import pyarrow as pa

    versions = {
        "datacoord": datacoord_version(),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "pyarrow": pa.__version__,
    }
    if output == "json":
        print_json([versions])
        return
    for name, number in versions.items():
        click.echo(f"{name} {number}")
