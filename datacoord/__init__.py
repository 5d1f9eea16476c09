"""Common ground of Datacoord and its face: contract stubs, paths, reasons, limits, object stores, reading, the command.

To read a collection back: `datacoord.read(spark, …)` as a DataFrame, `datacoord.to_arrow(…)` as one table,
`datacoord.read_batches(…)` as record batches one after the other.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datacoord.reading import read, read_batches, to_arrow

__all__ = ["read", "read_batches", "to_arrow"]


def __getattr__(name: str) -> Any:
    """Loads what reads, with Arrow and gRPC behind it, only for those who read."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from datacoord import reading

    return getattr(reading, name)
