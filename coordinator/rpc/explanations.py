"""Explain: which channels are held back, by what, and what to do."""

from coordinator.core.findings import Finding
from coordinator.rpc import validation
from coordinator.rpc.guard import Call
from coordinator.store import Store
from datacoord.v1 import admin_pb2


class ExplanationsMixin:
    """The part of AdminService that explains; the servicer sets what it needs."""

    _store: Store

    async def Explain(  # noqa: N802 - methods are called what the contract calls them
        self, request: admin_pb2.ExplainRequest, _call: Call
    ) -> admin_pb2.ExplainResponse:
        """Examines channels, the worst finding first."""
        found = await self._store.explain(
            channel_name=validation.channel_name(request.channel_name) if request.channel_name else "",
            collection_name=validation.collection_name(request.collection_name) if request.collection_name else "",
            findings_max=validation.page_size(request.page_size),
        )
        return admin_pb2.ExplainResponse(findings=map(_finding, found.items), total=found.total)


def _finding(finding: Finding) -> admin_pb2.Finding:
    return admin_pb2.Finding(
        channel_name=finding.channel_name,
        collection_name=finding.collection_name,
        severity=finding.severity.value,  # type: ignore[arg-type]
        problem=finding.problem.value,
        explanation=finding.explanation,
        advice=finding.advice,
        since_time_ms=finding.since_ms,
    )
