"""How long the recovery info of 10,000 channels takes, with 10 thousand segments behind them and with a million.

make bench NAME=recovery_info [ARGS="--rounds 5 --scale 1"]; 10 minutes at most. `--scale` is a share of the channels and segments.
"""

import contextlib
import itertools
import time

from benchmarks.harness import fill, workload
from benchmarks.harness.command import Options, main
from benchmarks.harness.load import RawClient
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Sample, Side, interleave, ratios, spread
from benchmarks.harness.servers import DATABASES, CoordinatorProcess, coordinator_on, postgres_server, scratch
from benchmarks.harness.workload import Lane, Load
from datacoord.v1 import data_coord_pb2

CHANNELS = 10_000
PAGE = 1_000
SEGMENTS = (10_000, 1_000_000)
GET_RECOVERY_INFO = "/datacoord.v1.DataCoordService/GetRecoveryInfo"

METHOD = (
    f"One client reads the recovery info of a whole collection of {CHANNELS:,} channels in pages of {PAGE:,}: epoch, checkpoint, "
    "progress of every lane, and the segment that grows in each; the other segments are sealed. The longest page says for how "
    "long others wait on SQLite, whose reads run on the event loop."
)


async def _prepare(process: CoordinatorProcess, channels: int, segments: int) -> None:
    lanes = workload.claimed_lanes(process.address, channels)
    fill.sealed(process.database_url, lanes, segment_count=segments, per_segment=1)
    await _grow(process, lanes)


async def _grow(process: CoordinatorProcess, lanes: list[Lane]) -> None:
    """One save for every channel, so that a segment grows in each."""
    per_call = min(128, len(lanes))
    load = Load(lanes, callers=1, per_call=per_call)
    client = RawClient([process.address], workload.SAVE_BINLOG_PATHS)
    await client.drive(load.saves(-(-len(lanes) // per_call)), per_call)
    await client.close()


def _side(name: str, client: RawClient, channels: int) -> Side:
    async def run() -> Sample:
        token, found = "", 0
        pages_ms: list[float] = []
        started = time.perf_counter()
        while True:
            request = data_coord_pb2.GetRecoveryInfoRequest(
                collection_name=workload.COLLECTION, page_size=PAGE, page_token=token
            )
            sample, (reply,) = await client.drive([[request.SerializeToString()]], 1)
            page = data_coord_pb2.GetRecoveryInfoResponse.FromString(reply)
            pages_ms += sample.latencies_ms
            found += len(page.channels)
            assert all(len(channel.growing_segments) == 1 for channel in page.channels)
            token = page.next_page_token
            if not token:
                break
        assert found == channels
        return Sample(found, time.perf_counter() - started, pages_ms)

    return Side(name, run)


async def measure(options: Options) -> Report:
    """Reads it in turns from databases of both kinds and sizes."""
    channels = options.scaled(CHANNELS)
    sizes = [max(channels, options.scaled(size)) for size in SEGMENTS]
    sides: list[Side] = []
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(scratch())
        postgres = stack.enter_context(postgres_server())
        for database, (number, size) in itertools.product(DATABASES, enumerate(sizes)):
            process = stack.enter_context(coordinator_on(database, directory / f"{database}-{number}", postgres))
            await _prepare(process, channels, size)
            client = RawClient([process.address], GET_RECOVERY_INFO, [process.pid])
            stack.push_async_callback(client.close)
            sides.append(_side(f"{database}, {size:,} segments ({number})", client, channels))
        samples = await interleave(sides, options.rounds)
    report = Report("recovery_info", METHOD, ("database", "seconds", "longest page ms", "× fewest segments"))
    report.versions = {"postgresql": postgres.version}
    names = list(samples)
    for number, (name, of) in enumerate(samples.items()):
        smallest = samples[names[number - number % len(sizes)]]
        seconds, longest = spread(of, lambda sample: sample.seconds), spread(of, lambda s: s.percentile_ms(100))
        to_smallest = ratios(of, smallest, lambda sample: sample.seconds)
        shown = name.rsplit(" (", 1)[0]
        report.rows.append([shown, seconds.shown(), longest.shown(0), to_smallest.shown()])
        report.figures[shown] = {
            "seconds": seconds.as_json(),
            "longest_page_ms": longest.as_json(),
            "to_fewest_segments": to_smallest.as_json(),
        }
    return report


if __name__ == "__main__":
    main(measure, __doc__)
