"""All benchmarks of coordinator and datanodes, one after the other; writes docs/performance.md.

make bench NAME=all
"""

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
NAMES = (
    *(
        "checkpoints",
        "checkpoint_updater",
        "latency",
        "saves",
        "commits",
        "scale",
        "recovery_info",
        "overload",
        "scrape",
    ),
    *("datanode_job", "stream_sink", "datanode_figures"),
)

HEAD = """# Performance

Written by `make bench NAME=all`; run it on your machine. Every benchmark runs its sides in turns, several rounds, and takes ratios
within a round: a figure stands as median (smallest–largest). Client, servers and databases share the machine, every server syncs to
disk before it answers, and requests are encoded before the clock starts. Rates of a busy machine say little; ratios say more, and
processor time per item says most: it is that of client, server and database together.
"""


def measure(name: str, arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """Runs one benchmark; its text and its figures.

    Raises:
        subprocess.CalledProcessError: it failed; it has said why.
    """
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    *shown, last = output.strip().splitlines()
    return "\n".join(shown), json.loads(last)


def page(results: dict[str, tuple[str, dict[str, Any]]], arguments: list[str], when: datetime) -> str:
    """The whole page."""
    parts = [HEAD, _machine(results, arguments, when), _bars(results)]
    for name, (shown, _) in results.items():
        method, _, rest = shown.removeprefix(f"{name}: ").partition("\n\n")
        table = "\n".join(line for line in rest.splitlines() if line.startswith("|"))
        parts.append(f"## {name}\n\n{method}\n\n{table}\n")
    return "\n".join(parts)


def _machine(results: dict[str, tuple[str, dict[str, Any]]], arguments: list[str], when: datetime) -> str:
    versions: dict[str, str] = {}
    loads = []
    for _, figures in results.values():
        versions |= figures["versions"]
        loads.append(figures["machine"]["load_before"])
    machine = next(iter(results.values()))[1]["machine"]
    return (
        f"Measured on {when:%Y-%m-%d}: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}; load average at the end of each benchmark {min(loads):g} to {max(loads):g} (much above the number "
        "of cores means that other work ran beside).\n\n"
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}. "
        f"Arguments: `{' '.join(arguments) or 'none'}`.\n"
    )


def _bars(results: dict[str, tuple[str, dict[str, Any]]]) -> str:
    lines = [
        "## Bars\n",
        "| benchmark | ratio | measured | first bar | goal | reached |",
        "|---|---|---:|---:|---:|---|",
    ]
    for name, (_, figures) in results.items():
        for bar in figures["bars"]:
            sign = "≤" if bar["at_most"] else "≥"
            asked = f"{sign} {bar['first_bar']:g} | {sign} {bar['goal']:g}"
            lines.append(f"| {name} | {bar['name']} | {bar['value']:.2f} | {asked} | {bar['verdict']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs all and writes the page."""
    parser = argparse.ArgumentParser(
        description="Runs all benchmarks of coordinator and datanodes and writes docs/performance.md."
    )
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--output", type=Path, default=PAGE)
    given, arguments = parser.parse_known_args()
    results = {}
    for name in given.only:
        print(f"benchmark: {name}", file=sys.stderr, flush=True)
        results[name] = measure(name, arguments)
        print(results[name][0], "\n", flush=True)
        # After each of them: a run that is cut short leaves what it has found.
        given.output.write_text(page(results, arguments, datetime.now(UTC)))
    print(json.dumps({name: figures for name, (_, figures) in results.items()}, ensure_ascii=False))


if __name__ == "__main__":
    main()
