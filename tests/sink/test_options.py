"""Options are what the pages say, and what is not one of them is refused with a sentence."""

from typing import Any

import pytest

from datacoord.errors import ConfigInvalidError
from datanode_client.spark.options import ReadOptions, SinkOptions, stream_owner

NEEDED = {"coordinator": "127.0.0.1:1", "collection": "c"}


def test_names_are_compared_as_spark_does() -> None:
    """Spark hands options over in lower case, with its own among them."""
    options = SinkOptions.read(
        {**NEEDED, "TIMESTAMPcolumn": "ts", "primarykey": "a, b", "queryname": "q", "checkpointlocation": "/x"}
    )

    assert (options.timestamp_column, options.primary_key) == ("ts", ("a", "b"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"timestampColum": "ts"}, "did you mean timestampColumn"),
        ({"path": "/x"}, "there are coordinator, collection"),
        ({"collection": ""}, "option collection is missing"),
        ({"force": "yes"}, "true or false"),
        ({"bufferBytes": "1"}, "from 1024"),
        ({"bufferBytes": "1e9"}, "from 1024"),
        ({"bufferBytes": str(2**30 + 1)}, "to 1073741824"),
        ({"channelCount": "65537"}, "from 1 to 65536"),
        ({"operation": "insert"}, "one of append, upsert, delete"),
        ({"operation": "upsert", "operationColumn": "op"}, "drop operation"),
        ({"channels": "3-"}, "indexes and ranges"),
        ({"primaryKey": "a,,b"}, "commas between"),
        ({"compression": "zip"}, "zstd, snappy"),
        ({"resume": "true"}, "one of progress"),
        ({"resume": "progress"}, "needs timestampColumn"),
        ({"owner": "a b"}, "characters of"),
        ({"batchId": "3"}, "without owner"),
    ],
)
def test_a_wrong_option_says_what_it_may_be(given: dict[str, str], sentence: str) -> None:
    """An option that is silently ignored, like a misspelt timestampColumn, changes what is landed."""
    with pytest.raises(ConfigInvalidError, match=sentence):
        SinkOptions.read({**NEEDED, **given})


@pytest.mark.parametrize(
    "filters",
    [
        "x",
        '["key", ">", 7]',
        '[["key", "~", 7]]',
        '[["key", "in", 7]]',
        '[["key", "=", [7]]]',
        '[["key", "=", null]]',
        "[[1, 2]]",
        '[["key", [">"], 7]]',
        '[["key", {"in": 1}, [7]]]',
    ],
)
def test_filters_that_are_none_say_what_they_look_like(filters: str) -> None:
    """A filter that is taken for something else gives other rows."""
    with pytest.raises(ConfigInvalidError, match=r"conditions in JSON.*\[\[\"key\", \">\", 7\]"):
        ReadOptions.read({**NEEDED, "filters": filters})


def test_an_option_of_the_sink_is_none_of_the_reader() -> None:
    """The same name of a format does not make the options the same."""
    with pytest.raises(ConfigInvalidError, match="no option 'timestampColumn'"):
        ReadOptions.read({**NEEDED, "timestampColumn": "ts"})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"owner": "me", "checkpointLocation": "/data/a"}, "me"),
        ({"queryName": "orders of today"}, "spark/orders_of_today"),
        ({"checkpointLocation": "s3a://b/checkpoints/orders/"}, "spark/orders/"),
        ({"checkpointLocation": "/data/a", "queryName": "orders"}, "spark/a/"),
    ],
)
def test_a_stream_is_named_by_what_spark_knows_it_by_over_restarts(options: dict[str, str], expected: str) -> None:
    """Another name after a restart would be another owner, which has to wait for the lease of the first one."""
    assert stream_owner(options).startswith(expected)
    assert stream_owner(options) == stream_owner({key.lower(): value for key, value in options.items()})


def test_a_query_that_was_renamed_is_the_same_owner() -> None:
    """It goes on behind its own checkpoint, and would be refused until the lease of its former name is over."""
    location = {"checkpointLocation": "s3a://b/checkpoints/orders"}
    names = {
        stream_owner(given)
        for given in (
            location,
            {**location, "queryName": "before"},
            {**location, "queryName": "after"},
            {"checkpointLocation": "s3a://b/checkpoints/orders/"},
        )
    }
    assert len(names) == 1


def test_two_checkpoint_directories_are_two_owners() -> None:
    """Two queries that share an owner share its epoch."""
    same: dict[str, Any] = {"queryName": "orders"}
    assert stream_owner({**same, "checkpointLocation": "/a"}) != stream_owner({**same, "checkpointLocation": "/b"})
    with pytest.raises(ConfigInvalidError, match="names this query over restarts"):
        stream_owner(NEEDED)
