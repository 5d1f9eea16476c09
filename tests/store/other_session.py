"""Somebody else's session on a PostgreSQL database: locks, other epochs, and the end of the store's own sessions."""

import asyncio

import psycopg


class Session:
    """Somebody else's connection, in a transaction."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url.replace("+psycopg", ""))
        # In a transaction, the view of activities would show the same for ever.
        self._watching = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)

    def close(self) -> None:
        """Ends it."""
        self.connection.close()
        self._watching.close()

    def lock(self, channel: str) -> None:
        """Locks a channel as a claim does."""
        statement = (
            "SELECT 1 FROM channel_state JOIN vchannels USING (channel_id) WHERE name = %s "
            "FOR NO KEY UPDATE OF channel_state"
        )
        self.connection.execute(statement, (channel,))

    def take(self, channel: str) -> None:
        """Gives it another epoch."""
        self.connection.execute(
            "UPDATE channel_state SET epoch = epoch + 1000 FROM vchannels v WHERE v.channel_id = channel_state.channel_id "
            "AND name = %s",
            (channel,),
        )

    def waiting(self) -> bool:
        """Whether the writer of the store waits for a lock."""
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        row = self._watching.execute(statement).fetchone()
        return row is not None and bool(row[0])

    def end(self, pid: int) -> None:
        """Ends a session of the server, and waits until it has ended."""
        self._watching.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))

    def pid_of_writer(self) -> int:
        """The server's process for the store's writer."""
        statement = "SELECT pid FROM pg_stat_activity WHERE application_name = 'datacoord-writer' AND datname = current_database()"
        row = self._watching.execute(statement).fetchone()
        assert row is not None
        return int(row[0])


async def until_waiting(other: Session) -> None:
    """Until the store's writer stands at a lock."""
    async with asyncio.timeout(20):
        while not other.waiting():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.005)
