"""The `datacoord` command. Commands register here and are imported when they are used."""

import os

import click

from datacoord.cli.lazy import LazyGroup

# gRPC's core writes a line of its own to standard error for every handshake that fails: strangers could fill the disk with them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def main() -> None:
    """Lands ordered change streams in object storage exactly once.

    Every command has its own --help.
    """


main.add_lazy("serve", "datacoord.cli.serve:serve", "Run a coordinator.")
main.add_lazy("migrate", "datacoord.cli.migrate:migrate", "Bring a database up to this version.")
main.add_lazy("health", "datacoord.cli.health:health", "Ask a coordinator whether it can do its work.")
main.add_lazy("config", "datacoord.cli.config:config", "Show the effective settings of a coordinator, secrets masked.")
main.add_lazy("land", "datacoord.cli.land:land", "Run a datanode job on Spark over a source.")
main.add_lazy("collections", "datacoord.cli.collections:collections", "List collections; create, alter or drop one.")
main.add_lazy("partitions", "datacoord.cli.collections:partitions", "List partitions; create or drop one.")
main.add_lazy("channels", "datacoord.cli.channels:channels", "List channels: owner, checkpoint, lag; or move one.")
main.add_lazy("segments", "datacoord.cli.segments:segments", "List segments: state, rows, bytes; seal or drop some.")
main.add_lazy("datanodes", "datacoord.cli.listings:datanodes", "List sessions of datanodes.")
main.add_lazy("top", "datacoord.cli.top:top", "Show the service live in the terminal.")
main.add_lazy("stuck", "datacoord.cli.stuck:stuck", "Say which channels are stuck, why, and what to do.")
main.add_lazy("flush", "datacoord.cli.flush:flush", "Make everything consumed so far durable and sealed.")
main.add_lazy("events", "datacoord.cli.events:events", "Show the history: what changed when, by whom.")
main.add_lazy("verify", "datacoord.cli.verify:verify", "Prove rows, objects and history consistent.")
main.add_lazy("restore", "datacoord.cli.restore:restore", "Make a database safe that was restored from a backup.")
main.add_lazy("rebuild", "datacoord.cli.rebuild:rebuild", "Rebuild the rows of a lost database from the objects.")
main.add_lazy("gc", "datacoord.cli.gc:gc", "Control the garbage collector: status, pause, resume, run, dry-run.")
main.add_lazy("demo", "datacoord.cli.demo:demo", "Land real input exactly once, with kills, and prove it.")
main.add_lazy("token", "datacoord.cli.token:token", "Make tokens that let callers in.")
main.add_lazy("version", "datacoord.cli.version:version", "Show versions.")
