"""The matcher: joins the prewrites and commits of one region.

A change comes live as two rows: the prewrite has the values, the commit has the commit timestamp. While the incremental scan of
the region still runs, live rows and rows of the scan come in any order, so what cannot be decided is kept until INITIALIZED.
"""

from datanode_client.puller.events import Row

ROW_OVERHEAD_BYTES = 256
"""What a row costs in memory besides its keys and values, measured roughly."""


def row_bytes(row: Row) -> int:
    """What a cached row weighs."""
    return len(row.key) + len(row.value) + len(row.old_value) + ROW_OVERHEAD_BYTES


class Matcher:
    """The prewrites of one region that wait for their end, by (start_ts, key).

    A transaction may hold its locks as long as it likes, so nothing expires; `bytes` says what the wait costs.
    """

    def __init__(self) -> None:
        self._prewrites: dict[tuple[int, bytes], Row] = {}
        self._cached_commits: list[Row] = []
        self._cached_rollbacks: list[Row] = []
        self.bytes = 0

    @property
    def waiting(self) -> int:
        """Number of prewrites without an end so far."""
        return len(self._prewrites)

    def put_prewrite(self, row: Row) -> None:
        """Remembers a prewrite.

        It replaces an older one of the same key and transaction, except that an empty value never replaces a value (heartbeats of
        a transaction and repeated prewrites leave long values out), and an older generation never a newer one (pipelined DML).
        """
        key = (row.start_ts, row.key)
        cached = self._prewrites.get(key)
        if cached is not None:
            if not row.value or row.generation < cached.generation:
                return
            self.bytes -= row_bytes(cached)
        self._prewrites[key] = row
        self.bytes += row_bytes(row)

    def match(self, row: Row, *, initialized: bool) -> Row | None:
        """Joins a commit with its prewrite, which is then forgotten.

        Before INITIALIZED a prewrite without a value or of a pipelined transaction may not be the last word: the scan can still
        bring the one with the value, or a later generation. It stays, and the commit is to be cached.

        Args:
            row: the commit.
            initialized: whether the region's scan is over.

        Returns:
            the commit with the values of its prewrite; None if it has to wait, or has no prewrite.
        """
        key = (row.start_ts, row.key)
        prewrite = self._prewrites.get(key)
        if prewrite is None or (not initialized and (not prewrite.value or prewrite.generation > 0)):
            return None
        del self._prewrites[key]
        self.bytes -= row_bytes(prewrite)
        return Row(
            row.type,
            row.start_ts,
            row.commit_ts,
            row.key,
            prewrite.value,
            prewrite.old_value,
            row.op_type,
            row.generation,
        )

    def rollback(self, row: Row) -> None:
        """Forgets the prewrite of a transaction that was rolled back; if there is none, nothing happens."""
        prewrite = self._prewrites.pop((row.start_ts, row.key), None)
        if prewrite is not None:
            self.bytes -= row_bytes(prewrite)

    def cache_commit(self, row: Row) -> None:
        """Keeps a commit until the region is initialized."""
        self._cached_commits.append(row)
        self.bytes += row_bytes(row)

    def cache_rollback(self, row: Row) -> None:
        """Keeps a rollback until the region is initialized: the scan may bring its prewrite later."""
        self._cached_rollbacks.append(row)
        self.bytes += row_bytes(row)

    def match_cached_commits(self) -> list[Row]:
        """Joins the cached commits, once the region is initialized.

        Returns:
            those that found their prewrite, in order of arrival. The others are dropped: the scan has sent them as COMMITTED.
        """
        cached, self._cached_commits = self._cached_commits, []
        self.bytes -= sum(map(row_bytes, cached))
        matched = (self.match(row, initialized=True) for row in cached)
        return [row for row in matched if row is not None]

    def match_cached_rollbacks(self) -> int:
        """Applies the cached rollbacks; to be called after `match_cached_commits`.

        Returns:
            number of prewrites still waiting.
        """
        cached, self._cached_rollbacks = self._cached_rollbacks, []
        for row in cached:
            self.bytes -= row_bytes(row)
            self.rollback(row)
        return self.waiting
