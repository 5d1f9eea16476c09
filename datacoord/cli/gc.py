"""`datacoord gc`: what the garbage collector did, does and would do."""

import re
import time

import click

from datacoord.cli.connection import address_options
from datacoord.cli.output import age, output_option, print_json, short_name, size, to_record
from datacoord.cli.tables import print_table
from datacoord.client import CoordinatorClient
from datacoord.v1 import admin_pb2

_UNITS_MS = {"s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(_context: click.Context, _option: click.Parameter, value: str | None) -> int:
    """`90s`, `15min`, `2h`, `1d` in milliseconds; 0 where nothing is said."""
    if value is None:
        return 0
    match = re.fullmatch(r"([1-9][0-9]{0,5})(s|min|h|d)", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no time; write 90s, 15min, 2h or 1d")
    return int(match[1]) * _UNITS_MS[match[2]]


@click.group()
def gc() -> None:
    """Control the garbage collector: the only one that deletes objects, and only those that can never be registered."""


@gc.command()
@address_options
@output_option
def status(address: str, timeout_seconds: float, output: str) -> None:
    """Show whether it is paused, and what its last round did."""
    _ask(address, timeout_seconds, output, admin_pb2.GcControlRequest(action=admin_pb2.GC_ACTION_STATUS))


@gc.command()
@click.option(
    "--for",
    "pause_ms",
    metavar="TIME",
    callback=_duration_ms,
    help="End the pause after 90s, 15min, 2h, 1d.  [default: at resume]",
)
@click.option("--reason", default="", help="Why; shown in the status.")
@address_options
@output_option
def pause(pause_ms: int, reason: str, address: str, timeout_seconds: float, output: str) -> None:
    """Delete nothing until the pause ends, or until `resume`."""
    request = admin_pb2.GcControlRequest(action=admin_pb2.GC_ACTION_PAUSE, pause_ms=pause_ms, reason=reason)
    _ask(address, timeout_seconds, output, request)


@gc.command()
@address_options
@output_option
def resume(address: str, timeout_seconds: float, output: str) -> None:
    """Go on; also ends the hold that a restore has set."""
    _ask(address, timeout_seconds, output, admin_pb2.GcControlRequest(action=admin_pb2.GC_ACTION_RESUME))


@gc.command()
@address_options
@output_option
def run(address: str, timeout_seconds: float, output: str) -> None:
    """Begin a round as soon as possible, on whichever replica runs the jobs."""
    _ask(address, timeout_seconds, output, admin_pb2.GcControlRequest(action=admin_pb2.GC_ACTION_RUN))


@gc.command("dry-run")
@click.argument("collection", default="")
@address_options
@output_option
def dry_run(collection: str, address: str, timeout_seconds: float, output: str) -> None:
    """Say what a round would delete now, in COLLECTION or everywhere, and why; delete nothing.

    A plan ends with the time of the call: give it more with --timeout where a storage root is large.
    """
    request = admin_pb2.GcControlRequest(action=admin_pb2.GC_ACTION_DRY_RUN, collection_name=collection)
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        answer = client.gc_control(request)
    if output == "json":
        print_json([to_record(answer)])
        return
    print_table(
        ("object", "size", "why"),
        ((row.path, size(row.size_bytes), _verdict(row.verdict)) for row in answer.candidates),
        numbers=("size",),
        empty="There is no garbage.",
    )
    plan = answer.round
    click.echo(
        f"Of {plan.objects_listed} objects {plan.objects_deleted} would go ({size(plan.bytes_deleted)}), and "
        f"{plan.binlog_rows_deleted} binlog rows; {plan.unknown_names} names are none of ours and stay."
    )
    rest = plan.objects_deleted + plan.unknown_names - len(answer.candidates)
    if rest > 0:
        click.echo(f"The table shows {len(answer.candidates)} of them.")
    if plan.error:
        click.echo(f"The plan is not whole: {plan.error}.")


def _verdict(value: int) -> str:
    return short_name("GcVerdict", admin_pb2.GcVerdict.Name(value))


def _ask(address: str, timeout_seconds: float, output: str, request: admin_pb2.GcControlRequest) -> None:
    with CoordinatorClient(address, caller="cli", timeout_seconds=timeout_seconds) as client:
        answer = client.gc_control(request)
    if output == "json":
        print_json([to_record(answer)])
        return
    print_table(("garbage collector", ""), _rows(answer), empty="")


def _rows(answer: admin_pb2.GcControlResponse) -> list[tuple[str, object]]:
    done = answer.round
    rows: list[tuple[str, object]] = [("deleting", _state(answer))]
    if answer.reason:
        rows.append(("reason", answer.reason))
    rows.append(("round asked for", "yes" if answer.run_requested else "no"))
    rows.append(("last round", age(done.start_time_ms)))
    if done.start_time_ms:
        rows += [
            ("took", f"{done.duration_ms / 1000:.1f} s"),
            ("objects listed", done.objects_listed),
            ("objects deleted", f"{done.objects_deleted} ({size(done.bytes_deleted)})"),
            ("binlog rows deleted", done.binlog_rows_deleted),
            ("unknown names", done.unknown_names),
            ("not done", done.error or "nothing"),
        ]
    return rows


def _state(answer: admin_pb2.GcControlResponse) -> str:
    if not answer.paused:
        return "not by this replica" if answer.reason else "yes"
    if not answer.paused_until_time_ms:
        return "no, until it is resumed"
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(answer.paused_until_time_ms / 1000))
    return f"no, until {until}"
