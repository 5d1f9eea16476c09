"""Row *Paths*: an object is only ever where its collection's root says, whoever names it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.conftest import client, coordinator
from server.running_coordinator import claim, definition, save_part

from coordinator.rpc.definitions import check_storage_root
from datacoord.client import CoordinatorClient
from datacoord.errors import InvalidFieldError, PathNotAllowedError
from datacoord.paths import BinlogPath

__all__ = ["client", "coordinator"]

HOSTILE = (
    "../../etc/passwd",
    "/etc/passwd",
    "insert_log/../../x",
    "s3://other-bucket/x",
    "file:///etc/passwd",
    "insert_log//x",
    "insert_log/./x",
    "insert_log/\x00",
    "insert_log\\x",
    "x" * 10_000,
    "",
)


@pytest.mark.parametrize("path", HOSTILE, ids=range(len(HOSTILE)))
def test_a_path_that_leads_elsewhere_is_never_registered(client: CoordinatorClient, path: str) -> None:
    """A reader opens and the collector deletes what is registered: a path outside the root is somebody else's file."""
    client.create_collection(definition())
    part = save_part(claim(client)[0], 0, 5, 1)
    part.lanes[0].insert_logs[0].binlogs[0].log_path = path
    with pytest.raises((PathNotAllowedError, InvalidFieldError)):
        client.save_binlog_paths([part])
    assert not any(channel.binlogs for channel in client.list_binlogs("files"))


@given(st.text(max_size=60) | st.lists(st.sampled_from(["..", ".", "", "insert_log", "1", "\x00", "a"])).map("/".join))
def test_what_the_grammar_takes_never_leads_out(path: str) -> None:
    """One path that is taken and normalises to another place is enough."""
    try:
        parsed = BinlogPath.parse(path)
    except PathNotAllowedError:
        return
    assert str(parsed) == path
    assert not path.startswith("/")
    assert not {"", ".", ".."} & set(path.split("/"))


@pytest.mark.parametrize(
    "root", ["relative/x", "../x", "/data/../etc", "http://h/x", "s3://", "s3://k:secret@b/x", "ftp://h/x", "C:\\x"]
)
def test_a_root_that_is_none_is_refused(root: str) -> None:
    """The root is named by a caller, too."""
    with pytest.raises(InvalidFieldError) as caught:
        check_storage_root(root)
    assert "secret" not in caught.value.message
