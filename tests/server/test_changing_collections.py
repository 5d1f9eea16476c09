"""AlterCollection and drops through a real gRPC server: what is refused by its shape alone, and what is so afterwards."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from datacoord.client import CoordinatorClient
from datacoord.errors import CollectionNotFoundError, DatacoordError, InvalidFieldError, PartitionNotFoundError
from datacoord.v1 import collection_pb2, common_pb2
from server.running_coordinator import definition

APPLIED = common_pb2.OUTCOME_APPLIED
ALREADY_APPLIED = common_pb2.OUTCOME_ALREADY_APPLIED


def change(
    *columns: pa.Field, name: str = "files", remove: tuple[str, ...] = (), properties: Mapping[str, str] | None = None
) -> collection_pb2.AlterCollectionRequest:
    """A change of a collection."""
    added = pa.schema(columns).serialize().to_pybytes() if columns else b""
    return collection_pb2.AlterCollectionRequest(
        collection_name=name, add_columns=added, set_properties=properties or {}, remove_properties=remove
    )


def test_a_collection_is_altered_once(client: CoordinatorClient) -> None:
    """A repetition must find everything as it is."""
    before = client.create_collection(definition(properties={"a": "b"}))
    request = change(pa.field("extra", pa.timestamp("us", "UTC")), remove=("a",), properties={"c": "d"})
    first, second = client.alter_collection(request), client.alter_collection(request)

    assert (first.outcome, second.outcome) == (APPLIED, ALREADY_APPLIED)
    assert first.collection == second.collection == client.describe_collection("files")
    assert dict(first.collection.properties) == {"c": "d"}
    old, new = (pa.ipc.read_schema(pa.py_buffer(row.arrow_schema)) for row in (before, first.collection))
    assert new.names == [*old.names, "extra"]
    assert new.field("extra").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (change(pa.field("x", pa.int8(), nullable=False)), "not nullable"),
        (change(pa.field("_x", pa.int8())), "underscore"),
        (change(pa.field("x", pa.int8()), pa.field("x", pa.int8())), "twice"),
        (change(properties={"a": "1"}, remove=("a",)), "set and removed"),
        (change(properties={"a": "x" * 5000}), "longer than"),
        (change(properties={f"p{number}": "" for number in range(65)}), "65 items"),
        (collection_pb2.AlterCollectionRequest(collection_name="files", add_columns=b"nonsense"), "add_columns"),
        (change(name="no name"), "collection_name"),
    ],
)
def test_a_malformed_change_is_refused(
    client: CoordinatorClient, request_: collection_pb2.AlterCollectionRequest, says: str
) -> None:
    """Whatever is let through here stands in every recovery info."""
    before = client.create_collection(definition())
    with pytest.raises(DatacoordError, match=says):
        client.alter_collection(request_)
    assert client.describe_collection("files") == before


def test_what_cannot_be_altered_is_said(client: CoordinatorClient) -> None:
    """A typo, and a column that would change its type."""
    client.create_collection(definition())
    with pytest.raises(CollectionNotFoundError):
        client.alter_collection(change(name="other"))
    column = client.describe_collection("files")
    first = pa.ipc.read_schema(pa.py_buffer(column.arrow_schema)).field(0)
    with pytest.raises(InvalidFieldError, match="is there already"):
        client.alter_collection(change(pa.field(first.name, pa.list_(pa.int8()))))


def test_a_collection_is_dropped_once_and_its_name_is_free(client: CoordinatorClient) -> None:
    """A repetition with the number must not drop what has the name by then."""
    old = client.create_collection(definition())
    first = client.drop_collection("files", old.collection_id)
    new = client.create_collection(definition())
    second = client.drop_collection("files", old.collection_id)

    assert (first.outcome, second.outcome) == (APPLIED, ALREADY_APPLIED)
    assert first.collection_id == second.collection_id == old.collection_id != new.collection_id
    assert client.describe_collection("files") == new
    assert client.drop_collection("files").collection_id == new.collection_id
    with pytest.raises(CollectionNotFoundError):
        client.drop_collection("files")
    with pytest.raises(InvalidFieldError):
        client.drop_collection("files", -1)


def test_a_partition_is_dropped_once(client: CoordinatorClient) -> None:
    """The same, for partitions; by its number alone as well."""
    client.create_collection(definition())
    number = client.create_partition("files", "second")
    first = client.drop_partition("files", "second")
    other = client.create_partition("files", "second")

    assert (first.outcome, first.partition_id) == (APPLIED, number)
    assert client.drop_partition("files", "second", number).outcome == ALREADY_APPLIED
    assert client.drop_partition("files", "", other).outcome == APPLIED
    with pytest.raises(PartitionNotFoundError):
        client.drop_partition("files", "third")
    for name, number_ in (("", 0), ("no name", 0), ("_default", 0), ("second", -1)):
        with pytest.raises(InvalidFieldError):
            client.drop_partition("files", name, number_)
