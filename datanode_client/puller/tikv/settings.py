"""Settings of the client of a TiKV cluster."""

from dataclasses import dataclass

from datacoord.errors import ConfigInvalidError
from datanode_client.puller.region_router import REGION_SCAN_LIMIT


@dataclass(frozen=True, slots=True)
class TiKVSettings:
    """How a cluster is called.

    Attributes:
        pd_addresses: host:port of PD's members; one that answers is enough.
        call_timeout_seconds: deadline of one attempt of every call that is not a change feed.
        region_scan_limit: regions of one store under initial scan at once.
        scan_window_multiplier: how many times that regions close to the present may use.
        filter_loop: leave out what a change feed wrote itself (rows with the mark of TiCDC's bidirectional replication).
        region_load_limit: regions asked from PD in one call.
        pd_clock_interval_seconds: how often PD is asked for the time.
        backlog_bytes_max: per subscription, what may wait for its consumer before its streams are not read any more.
    """

    pd_addresses: tuple[str, ...]
    call_timeout_seconds: float = 5.0
    region_scan_limit: int = REGION_SCAN_LIMIT
    scan_window_multiplier: int = 1
    filter_loop: bool = False
    region_load_limit: int = 1024
    pd_clock_interval_seconds: float = 1.0
    backlog_bytes_max: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if not self.pd_addresses or not all(":" in address for address in self.pd_addresses):
            raise ConfigInvalidError(
                f"pd_addresses is {self.pd_addresses!r}, but must name at least one member of PD as host:port",
                setting="pd_addresses",
                value=self.pd_addresses,
            )
        for name in ("call_timeout_seconds", "pd_clock_interval_seconds"):
            self._require_positive(name, getattr(self, name))
        for name in ("region_scan_limit", "scan_window_multiplier", "region_load_limit", "backlog_bytes_max"):
            self._require_positive(name, getattr(self, name))

    @staticmethod
    def _require_positive(setting: str, value: float) -> None:
        if value <= 0:
            raise ConfigInvalidError(f"{setting} is {value}, but must be above 0", setting=setting, value=value)
