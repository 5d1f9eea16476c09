"""What datanodes report of themselves, as metrics: executors cannot be scraped, so the coordinator speaks for them."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.store import DataNodeRow

_KEY: Final = re.compile(r"(datanode_[a-zA-Z0-9_]+)(?:\{(.*)\})?")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*)"(?:,|$)')
_OWN_LABELS: Final = ("job", "slot")


class ReportedMetrics(Collector):
    """Exports the newest report of every living session as `datacoord_<name>{job, slot, …}`.

    A name that ends in `_total` is a counter, every other one a gauge. A key that is not in Prometheus notation, or whose name
    does not begin with `datanode_` (it might be one of ours), is left out.

    Args:
        registry: where to export.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._nodes: tuple[DataNodeRow, ...] = ()
        registry.register(self)

    def show(self, nodes: Iterable[DataNodeRow]) -> None:
        """Replaces what is exported."""
        self._nodes = tuple(nodes)

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for at a scrape."""
        families: dict[str, Metric] = {}
        for node in self._nodes:
            for key, value in node.report.metrics.items():
                parsed = parse_key(key)
                if parsed is None:
                    continue
                name, labels = parsed
                name = f"datacoord_{name}"
                if name not in families:
                    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                    families[name] = kind(name, "Reported by datanodes.")
                families[name].add_sample(name, {**labels, "job": node.job, "slot": str(node.slot)}, value)
        yield from families.values()


def parse_key(key: str) -> tuple[str, dict[str, str]] | None:
    """Reads `datanode_x` or `datanode_x{label="value",…}`; None = it is neither, or it takes a label of ours."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    name, inner = match.group(1), match.group(2) or ""
    labels = dict(_LABEL.findall(inner))
    rebuilt = "".join(found.group() for found in _LABEL.finditer(inner))
    if rebuilt != inner or labels.keys() & set(_OWN_LABELS):
        return None
    return name, labels
