"""What datanodes report of themselves, as metrics: executors cannot be scraped, so the coordinator speaks for them."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.store import DataNodeRow
from datacoord.reported_metrics import parse_series


class ReportedMetrics(Collector):
    """Exports the newest report of every living session as `datacoord_<name>{job, slot, …}`.

    What is no metric of a datanode, or has another label than that metric, is left out: it might be one of ours, or one that
    makes Prometheus refuse the whole scrape.

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
            own = {"job": node.job, "slot": str(node.slot)}
            for key, value in node.report.metrics.items():
                parsed = parse_series(key)
                if parsed is None:
                    continue
                metric, sample, labels = parsed
                if metric.name not in families:
                    kind = "summary" if metric.is_pair else "counter" if metric.is_counter else "gauge"
                    # A family of counters is called what its samples are without `_total`.
                    family = metric.name.removesuffix("_total") if kind == "counter" else metric.name
                    families[metric.name] = Metric(f"datacoord_{family}", metric.meaning, kind)
                families[metric.name].add_sample(f"datacoord_{sample}", {**labels, **own}, value)
        yield from families.values()
