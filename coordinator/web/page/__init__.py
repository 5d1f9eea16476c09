"""The status page: what a person wants to see at a glance, rendered on the server, read-only, without a request to anybody else."""

from coordinator.web.page.history import SAMPLE_SECONDS, History, HistorySampler
from coordinator.web.page.views import StatusPage

__all__ = ["SAMPLE_SECONDS", "History", "HistorySampler", "StatusPage"]
