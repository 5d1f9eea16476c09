"""Log lines: JSON for machines, a console for people, and nothing of what callers and databases hold."""

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from coordinator import logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def fail(password: str) -> None:
    """Fails with a secret in a local variable."""
    local_secret = password * 2
    raise ZeroDivisionError(len(local_secret))


@pytest.mark.parametrize("form", ["json", "console", "auto"])
def test_a_traceback_shows_no_local_variables(form: str) -> None:
    """Locals of a failed call hold positions, paths and connection strings; logs go to places with other readers."""
    out = io.StringIO()
    logging.configure("info", form, out)
    try:
        fail("hunter" + str(form and 2))
    except ZeroDivisionError:
        logging.get_logger("test").exception("it_failed")
    assert "ZeroDivisionError" in out.getvalue()
    assert "it_failed" in out.getvalue()
    assert "hunter2" not in out.getvalue()


def test_a_json_line_is_one_line_with_what_programs_look_for() -> None:
    """A stack trace over many lines becomes many log entries in every collector."""
    out = io.StringIO()
    logging.configure("info", "json", out)
    logger = logging.get_logger("rpc")
    logger.info("rpc_failed", text="a\nb", number=1)
    try:
        fail("x")
    except ZeroDivisionError:
        logger.exception("it_failed")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["rpc_failed", "it_failed"]
    assert {"component", "event", "level", "timestamp", "text", "number"} == lines[0].keys()
    assert lines[1]["exception"][0]["exc_type"] == "ZeroDivisionError"


def test_levels_are_kept() -> None:
    """Debug lines of a busy coordinator would fill its disk."""
    out = io.StringIO()
    logging.configure("warning", "json", out)
    logging.get_logger("x").info("quiet")
    logging.get_logger("x").warning("loud")
    assert "quiet" not in out.getvalue()
    assert "loud" in out.getvalue()
