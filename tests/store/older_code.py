"""What the code of a revision said to PostgreSQL while it worked, written down once, to be said again to every later schema.

Coordinators are replaced one by one after the migration: until the last one is, older ones work on a schema that they do not know.
"""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from support.waiting import eventually

LISTENING = {
    "logging_collector": "on",
    "log_destination": "jsonlog",
    "log_rotation_age": "0",
    "log_rotation_size": "0",
    "log_statement": "all",
}
"""Settings of a server that writes down what it is told: by whatever way, which no hook in the driver hears."""

_TOLD = re.compile(r"(?:statement|execute [^:]*): (.*)", re.DOTALL)
_VALUE = re.compile(r"\$(\d+) = (NULL|'(?:[^']|'')*')")
_PARAMETER = re.compile(r"\$(\d+)")
_OF_THE_DRIVER = re.compile(r"\s*(?:select pg_catalog|show |select current_schema|select\s+typname)", re.IGNORECASE)
_HEARD_SECONDS_MAX = 30.0
_OPTIONS = "-c lock_timeout=20s -c statement_timeout=20s"


@dataclass(frozen=True)
class Said:
    """A statement.

    Attributes:
        session: which of the sessions said it, counted from 0.
        statement: with parameters as $1.
        values: of the parameters, as SQL writes them.
    """

    session: int
    statement: str
    values: tuple[str, ...]

    def written_out(self) -> str:
        """With its values in it, whose types the server finds by itself, as it does for parameters."""
        return _PARAMETER.sub(lambda match: self.values[int(match.group(1)) - 1], self.statement)

    def written_tables(self) -> set[str]:
        """The tables that it writes to."""
        return set(re.findall(r"\b(?:INSERT INTO|UPDATE|DELETE FROM)\s+(\w+)", self.statement))


@contextmanager
def heard(url: str) -> Iterator[list[Said]]:
    """Collects what others say to a database of a server with `LISTENING`; it is all there at the end."""
    found: list[Said] = []
    with psycopg.connect(_plain(url), autocommit=True, application_name="recorder") as connection:
        begin = _mark(connection)
        yield found
        end = _mark(connection)
        eventually(lambda: end in _log(connection), _HEARD_SECONDS_MAX)
        log = _log(connection)
    found += _parse(log[log.index(begin) : log.index(end)], url.rsplit("/", 1)[-1])


def _mark(connection: psycopg.Connection) -> str:
    mark = f"mark {uuid.uuid4()}"
    connection.execute(f"SELECT '{mark}'".encode())
    return mark


def _log(connection: psycopg.Connection) -> str:
    row = connection.execute("SELECT pg_read_file(pg_current_logfile('jsonlog'))").fetchone()
    assert row is not None
    return str(row[0])


def _parse(log: str, database: str) -> list[Said]:
    sessions: dict[str, int] = {}
    found = []
    # The first line and the last are those of the marks.
    for line in log.splitlines()[1:-1]:
        entry: dict[str, Any] = json.loads(line)
        told = _TOLD.fullmatch(entry.get("message", ""))
        ours = entry.get("dbname") == database and entry.get("application_name") != "recorder"
        if told is None or not ours or _OF_THE_DRIVER.match(told.group(1)):
            continue
        values = _VALUE.findall(entry.get("detail", ""))
        assert [int(number) for number, _ in values] == list(range(1, len(values) + 1)), entry
        session = sessions.setdefault(entry["session_id"], len(sessions))
        found.append(Said(session, told.group(1).strip(), tuple(value for _, value in values)))
    return found


def write(path: Path, said: list[Said]) -> None:
    """Writes it down: every statement once, and then who said which with what."""
    statements = list(dict.fromkeys(one.statement for one in said))
    numbers = {statement: number for number, statement in enumerate(statements)}
    lines = [json.dumps([one.session, numbers[one.statement], *one.values]) for one in said]
    texts = [json.dumps(statement, ensure_ascii=False) for statement in statements]
    path.write_text('{"statements": [\n' + ",\n".join(texts) + '\n], "said": [\n' + ",\n".join(lines) + "\n]}\n")


def read(path: Path) -> list[Said]:
    """What `write` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    statements = content["statements"]
    return [Said(session, statements[number], tuple(values)) for session, number, *values in content["said"]]


def say_again(url: str, said: list[Said]) -> list[int | str]:
    """Says it to another database, in its order; for each statement the number of its rows, or the SQLSTATE of its failure."""
    outcomes: list[int | str] = []
    with ExitStack() as sessions:
        opened: dict[int, psycopg.Connection] = {}
        for one in said:
            if one.session not in opened:
                connection = psycopg.connect(_plain(url), autocommit=True, options=_OPTIONS)
                opened[one.session] = sessions.enter_context(closing(connection))
            try:
                cursor = opened[one.session].execute(one.written_out().encode(), prepare=False)
                while cursor.nextset():
                    pass
                outcomes.append(cursor.rowcount)
            except psycopg.Error as error:
                outcomes.append(error.sqlstate or repr(error))
    return outcomes


def _plain(url: str) -> str:
    return url.replace("+psycopg", "")
