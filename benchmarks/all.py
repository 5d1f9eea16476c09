"""All benchmarks, one after the other. What each finds goes to docs/figures; both pages on performance are made of it.

make bench NAME=all
make bench NAME=all ARGS="--only saves --rounds 3"   # some of them; the pages keep the rest
make bench NAME=all ARGS="--only"                    # none of them: the pages again, of the figures that are there

What it does not know itself (`--rounds`, `--scale`, `--work`, `--long`) it gives to each benchmark. How long each takes at most
stands in its module.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness.pages import FIGURES, PAGES, Record, write_pages

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NAMES = tuple(name for page in PAGES for name in page.names)


def run(name: str, arguments: Sequence[str]) -> Record:
    """Runs one benchmark, and shows what it says.

    Raises:
        subprocess.CalledProcessError: it failed; it has said why.
    """
    print(f"benchmark: {name}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    *shown, last = output.strip().splitlines()
    print("\n".join(shown), "\n", flush=True)
    return Record(datetime.now(UTC), arguments, json.loads(last))


def main(docs: Path = DOCS) -> None:
    """Runs them and writes the pages."""
    parser = argparse.ArgumentParser(
        description="Runs benchmarks, stores what they find in docs/figures and makes the pages on performance of it. What it does "
        "not know itself it gives to each benchmark."
    )
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, help="these, not all; none: only the pages")
    given, arguments = parser.parse_known_args()
    reports = {}
    for name in given.only:
        record = run(name, arguments)
        reports[name] = record.report
        # After each of them: a run that is cut short leaves what it has found.
        record.write(docs / FIGURES)
        write_pages(docs)
    write_pages(docs)
    print(json.dumps(reports, ensure_ascii=False))


if __name__ == "__main__":
    main()
