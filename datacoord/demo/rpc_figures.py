"""Who called what, how often, and in which batches: a query over the events table, as anybody could ask it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from datacoord.demo.report import RpcFigures

QUERY = "SELECT rpc, caller, count(*), sum(items) FROM events GROUP BY rpc, caller ORDER BY count(*) DESC"


def read_rpc_figures(database: Path) -> list[RpcFigures]:
    """Reads the accepted calls of the whole run; they are in SQL, so no kill has lost any."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return [RpcFigures(rpc, caller, calls, items) for rpc, caller, calls, items in connection.execute(QUERY)]
