"""Writes docs/reference/settings.md and metrics.md from the definitions in code, or checks that they are fresh (`--check`).

What a setting or a metric means is said once, where it is defined; these pages are for those who do not read code.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from coordinator import config as coordinator_config
from coordinator.web.metrics import Metrics
from datanode_client import config as datanode_config
from datanode_client import metrics as datanode_metrics

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
GENERATED = "<!-- Written by `make docs`; change the definitions in code instead. -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def shown(value: object) -> str:
    """A default as people write it."""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value not in {"", None} else ""


def number(bound: float | None) -> str:
    """A bound of a setting as people write it."""
    return "" if bound is None else str(int(bound)) if bound == int(bound) else str(bound)


def documented_attributes(kind: type) -> dict[str, str]:
    """The `Attributes:` of a Google-style docstring by name."""
    section = inspect.getdoc(kind) or ""
    section = section.partition("Attributes:\n")[2]
    joined = re.sub(r"\n {6,}", " ", section)
    return dict(re.findall(r"^ {4}(\w+): (.+)$", joined, re.MULTILINE))


def coordinator_settings() -> str:
    """The table of the coordinator's settings."""
    rows = []
    for name, spec in coordinator_config.specs().items():
        low, high = (number(spec.metadata[bound]) for bound in ("minimum", "maximum"))
        choices = " or ".join(f"`{choice}`" for choice in spec.metadata["choices"])
        allowed = choices or (f"{low} to {high}" if high else f"at least {low}" if low else "")
        rows.append((f"`{name}`", shown(spec.default), allowed, spec.metadata["doc"]))
    return table(("setting", "default", "may be", "meaning"), rows)


def datanode_settings() -> str:
    """The table of a datanode's settings."""
    meanings = documented_attributes(datanode_config.DataNodeConfig)
    rows = [
        (f"`{spec.name}`", shown(spec.default), meanings[spec.name]) for spec in fields(datanode_config.DataNodeConfig)
    ]
    return table(("setting", "default", "meaning"), rows)


def settings_page() -> str:
    """The page of all settings."""
    return f"""# Settings

{GENERATED}

## Of the coordinator

Each setting has one name everywhere: `grpc_port` in a TOML file (`datacoord serve --config FILE`, or the environment's
`{coordinator_config.CONFIG_FILE_VARIABLE}`), `DATACOORD_GRPC_PORT` in the environment, `--grpc-port` on the command line. Later
ones win, in this order. `DATACOORD_<NAME>_FILE` names a file that holds the value. Unknown names and values out of range are
refused with [`CONFIG_INVALID`](errors.md).

{coordinator_settings()}

## Of a datanode

Fields of `datanode_client.config.DataNodeConfig`, under Milvus's names where Milvus has them.

{datanode_settings()}
"""


def metrics_page() -> str:
    """The page of all metrics."""
    coordinator = [
        (
            f"`{definition.name}`",
            definition.kind,
            ", ".join(f"`{label}`" for label in definition.labels),
            definition.meaning,
            definition.worry,
        )
        for definition in Metrics().definitions
    ]
    datanode = [(f"`datacoord_{name}`", meaning) for name, meaning in datanode_metrics.HELP.items()]
    return f"""# Metrics

{GENERATED}

All are served by the coordinator at `/metrics` of its web port, with the prefix `datacoord_`, in base units, with bounded labels.

## Of the coordinator

{table(("metric", "kind", "labels", "meaning", "look when"), coordinator)}

## Of datanodes

Executors cannot be scraped: they report with their heartbeats, and the coordinator exports the newest report of each living
session with the labels `job` and `slot`. Names that end in `_total` are counters; `_seconds` come as a pair `_sum` and `_count`.

{table(("metric", "meaning"), datanode)}
"""


def main() -> None:
    """Command line of the tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed pages are stale")
    check = parser.parse_args().check
    for name, page in {"settings.md": settings_page(), "metrics.md": metrics_page()}.items():
        path = REFERENCE / name
        if check and (not path.exists() or path.read_text(encoding="utf-8") != page):
            sys.exit(f"{path.relative_to(ROOT)} is stale: run `make docs` and commit the result")
        if not check:
            path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
