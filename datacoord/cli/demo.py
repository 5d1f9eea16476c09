"""`datacoord demo`: the main job on the embedded default, with kills, proven at the end."""

import sys
from pathlib import Path

import click


@click.command()
@click.option(
    "--source",
    type=click.Choice(["git", "generated"]),
    default="git",
    show_default=True,
    help="git: the first-parent history of a repository; generated: a seeded generator.",
)
@click.option(
    "--repo", type=click.Path(path_type=Path), default=Path(), show_default=True, help="The git repository to read."
)
@click.option(
    "--rows", type=click.IntRange(min=10_000), default=1_000_000, show_default=True, help="Operations to generate."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the generator.")
@click.option(
    "--kill/--no-kill", default=True, show_default=True, help="Kill a datanode and the coordinator on the way."
)
@click.option(
    "--datanodes", type=click.IntRange(2, 16), default=2, show_default=True, help="Datanodes, each a Spark task."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".demo"),
    show_default=True,
    help="Where database, objects and logs go; what an earlier demo left there is removed.",
)
def demo(*, source: str, repo: Path, rows: int, seed: int, kill: bool, datanodes: int, directory: Path) -> None:
    """Land real input exactly once, with processes killed on the way, and prove it.

    Progress goes to standard error; the report and, as its last line, one JSON object go to standard output. The exit status
    is 0 only if nothing is missing, wrong or doubled and, where something was killed, something was replayed.
    """
    from datacoord.demo.options import DemoOptions
    from datacoord.demo.run import run_demo

    sys.exit(
        run_demo(
            DemoOptions(
                source=source,
                repository=repo,
                rows=rows,
                kill=kill,
                datanodes=datanodes,
                directory=directory,
                seed=seed,
            )
        )
    )
