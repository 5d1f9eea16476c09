"""Objects in S3, over a real socket: whole or not there, whatever the network does, with errors that say what to do."""

import json
import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT_ID
from moto.s3.models import s3_backends
from support.s3 import ENVIRONMENT, FAULTS, S3Server, s3_server

from datacoord.errors import ConfigInvalidError, ObjectStoreError
from datacoord.objectstore import (
    BucketMissingError,
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
    StoreCredentialsError,
    StorePermissionError,
    StoreUnreachableError,
)
from datacoord.s3 import S3Settings, open_s3

PATH = "insert_log/7/1/3/0-10-0-99.parquet"
SMALL = pa.py_buffer(b"0123456789")
LARGE = pa.py_buffer(bytes(range(256)) * (48 * 1024))
"""12 MiB: two parts of a multipart upload."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """One server for the module; every test has a bucket of its own."""
    with s3_server() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new bucket, and a service without faults."""
    server.heal()
    name = f"b{abs(hash(request.node.name)):x}"
    server.make_bucket(name)
    yield name
    server.heal()


def read(store: ObjectStore, path: str) -> bytes:
    """A whole object."""
    with store.open_input(path) as file:
        return bytes(file.read())


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["one PUT", "multipart"])
def test_a_created_object_is_read_back_and_listed(server: S3Server, bucket: str, data: pa.Buffer) -> None:
    """What is named in SQL must be found again, by the same relative path."""
    store = ObjectStore.from_uri(f"s3://{bucket}/some/place/")
    store.create(PATH, data)

    assert read(store, PATH) == data.to_pybytes()
    assert list(store.list_objects()) == [ObjectInfo(PATH, data.size)]
    assert list(store.list_objects("insert_log/7")) == [ObjectInfo(PATH, data.size)]
    assert list(store.list_objects("delta_log")) == []
    assert server.names(bucket) == [f"{bucket}/some/place/{PATH}"]


def test_a_small_object_is_one_request(server: S3Server, bucket: str) -> None:
    """Three requests for each of thousands of small objects would be three times the bill and the time."""
    store = ObjectStore.from_uri(f"s3://{bucket}/root")
    server.requests.clear()
    store.create(PATH, SMALL)

    assert [method for method, _ in server.requests] == ["PUT"]


def test_a_bucket_may_itself_be_the_root(bucket: str) -> None:
    """A prefix is nobody's duty."""
    store = ObjectStore.from_uri(f"s3://{bucket}")
    store.create(PATH, SMALL)

    assert list(store.list_objects()) == [ObjectInfo(PATH, 10)]


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["one PUT", "multipart"])
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "stall"])
def test_an_upload_survives_what_passes(server: S3Server, bucket: str, fault: str, data: pa.Buffer) -> None:
    """Object stores refuse and reset all the time; each time a sync over again would be a sync too many."""
    store = ObjectStore.from_uri(f"s3://{bucket}/root")
    server.fail(2, fault, "PUT")
    store.create(PATH, data)

    assert len([1 for method, _ in server.requests if method == "PUT"]) >= 3
    assert read(store, PATH) == data.to_pybytes()


@pytest.mark.parametrize("fault", ["reset", "500", "503"])
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["one PUT", "multipart"])
def test_an_upload_that_failed_leaves_nothing_to_be_seen(
    server: S3Server, bucket: str, fault: str, data: pa.Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object with some of its parts would be registered as good by a retry, or found by a rebuild."""
    monkeypatch.setenv("DATACOORD_S3_ATTEMPTS", "2")
    store = ObjectStore.from_uri(f"s3://{bucket}/root")
    # Of a multipart upload the second part fails for good: the first one is there by then.
    server.fail(1000, fault, "PUT", "partNumber=2" if data is LARGE else "")
    with pytest.raises(StoreUnreachableError):
        store.create(PATH, data)
    server.heal()

    assert server.names(bucket) == []
    store.create(PATH.replace("-99", "-98"), data)
    assert [info.path for info in store.list_objects()] == [PATH.replace("-99", "-98")]


def test_a_lost_reply_to_the_end_of_an_upload_is_no_second_object(server: S3Server, bucket: str) -> None:
    """The service has completed it, the client has not heard so."""
    store = ObjectStore.from_uri(f"s3://{bucket}/root")
    server.fail(1, "lost_reply", "POST", "uploadId=")
    try:
        store.create(PATH, LARGE)
    except ObjectStoreError:
        # Not known to the client: then it takes another name, and this one is an orphan, whole.
        assert read(store, PATH) == LARGE.to_pybytes()

    assert [info.size_bytes for info in store.list_objects()] == [LARGE.size]


def test_a_service_that_says_nothing_is_given_up(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that waits for ever holds a lane, its memory and the checkpoint of its channel."""
    monkeypatch.setenv("DATACOORD_S3_REQUEST_TIMEOUT_SECONDS", "1")
    monkeypatch.setenv("DATACOORD_S3_ATTEMPTS", "5")  # the first is stalled; a busy machine may be late with more
    store = ObjectStore.from_uri(f"s3://{bucket}/root")
    server.fail(1, "stall", "PUT")
    store.create(PATH, SMALL)

    assert read(store, PATH) == b"0123456789"


def test_a_listing_of_many_pages_is_whole(server: S3Server, bucket: str) -> None:
    """S3 lists 1,000 names at a time. A collector or a rebuild that sees the first page only judges a part for the whole."""
    store = ObjectStore.from_uri(f"s3://{bucket}/root")
    paths = [PATH.replace("-99", f"-{number}") for number in range(1, 1102)]
    for path in paths:
        # Past the socket, which is not what is tested here and would take ten seconds.
        s3_backends[ACCOUNT_ID]["global"].put_object(bucket, f"root/{path}", b"x")
    server.requests.clear()

    assert sorted(info.path for info in store.list_objects("insert_log")) == sorted(paths)
    assert len(server.requests) >= 2


def test_what_lies_beside_the_root_is_not_listed(bucket: str) -> None:
    """`root` and `root2` share a prefix of characters, not a directory."""
    ObjectStore.from_uri(f"s3://{bucket}/root2").create(PATH, SMALL)

    assert list(ObjectStore.from_uri(f"s3://{bucket}/root").list_objects()) == []


@pytest.mark.parametrize("action", ["create", "open", "list"])
def test_a_missing_bucket_is_named_and_never_taken_for_an_empty_one(action: str, server: S3Server) -> None:
    """A collector or a rebuild that takes a mistyped bucket for an empty store concludes that everything is lost."""
    server.heal()
    store = ObjectStore.from_uri("s3://nobodys-bucket/root")
    with pytest.raises(BucketMissingError, match="create it or correct the storage root"):
        _act(store, action)


def test_a_missing_object_is_told_from_a_missing_bucket(bucket: str) -> None:
    """One is damage, the other a typo."""
    with pytest.raises(ObjectMissingError):
        ObjectStore.from_uri(f"s3://{bucket}/root").open_input(PATH)


def _act(store: ObjectStore, action: str) -> None:
    if action == "create":
        store.create(PATH, SMALL)
    elif action == "open":
        store.open_input(PATH)
    else:
        list(store.list_objects())


@pytest.fixture
def guarded(server: S3Server, bucket: str) -> Iterator[dict[str, str]]:
    """The service asks who calls from now on; gives a key of a user who may do nothing."""
    import boto3

    iam = boto3.client(
        "iam",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing-secret",
    )
    iam.create_user(UserName=bucket)
    key: dict[str, Any] = iam.create_access_key(UserName=bucket)["AccessKey"]
    _require_authentication(server, "0")
    try:
        yield {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    finally:
        _require_authentication(server, "inf")


def _require_authentication(server: S3Server, after: str) -> None:
    url = f"http://127.0.0.1:{server.port}/moto-api/reset-auth"
    request = urllib.request.Request(url, after.encode(), {"Content-Type": "text/plain"}, method="POST")
    with urllib.request.urlopen(request) as answer:
        assert json.loads(answer.read())["status"] == "ok"


@pytest.mark.parametrize("action", ["create", "list"])
def test_unknown_credentials_are_named_as_such(
    guarded: dict[str, str], bucket: str, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """They look like a missing right, and are cured elsewhere."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAUNKNOWNUNKNOWN00")
    with pytest.raises(StoreCredentialsError, match="credentials"):
        _act(ObjectStore.from_uri(f"s3://{bucket}/root"), action)


@pytest.mark.parametrize("action", ["create", "open", "list"])
def test_a_missing_right_is_named_as_such(
    guarded: dict[str, str], bucket: str, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Waiting gives nobody a right."""
    for name, value in guarded.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorePermissionError):
        _act(ObjectStore.from_uri(f"s3://{bucket}/root"), action)


def test_no_secret_is_shown_or_named(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors and settings end in logs, and logs in tickets."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush-hush")
    monkeypatch.setenv("DATACOORD_S3_ATTEMPTS", "1")
    server.fail(1000, "503")
    with caplog.at_level(logging.DEBUG), pytest.raises(ObjectStoreError) as caught:
        ObjectStore.from_uri(f"s3://{bucket}/root").create(PATH, SMALL)

    shown = f"{caught.value!r} {caught.value.metadata} {caplog.text}"
    settings = S3Settings(access_key="AKIAHIDDEN", secret_key="hush-hush-hush", session_token="hush-token")
    assert not [word for word in ("hush", "AKIAHIDDEN") if word in shown + repr(settings)]


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ("s3://key:hush@bucket/root", "credentials"),
        ("s3://key@bucket/root", "credentials"),
        ("s3:///root", "names no bucket"),
        ("s3://bucket/root?secret_key=hush", "unknown options secret_key"),
        ("s3://bucket/root?allow_bucket_creation=true", "unknown options"),
        ("s3://bucket/root?scheme=ftp&endpoint_override=x:1", "'ftp'"),
        ("s3://bucket/root?scheme=ftp", "'ftp'"),
    ],
)
def test_a_root_that_is_none_or_holds_a_secret_is_refused_without_showing_it(root: str, says: str) -> None:
    """A storage root is stored in SQL and shown to everybody who may list collections."""
    with pytest.raises(ConfigInvalidError, match=says) as caught:
        ObjectStore.from_uri(root)

    assert "hush" not in f"{caught.value} {caught.value.metadata}"


def test_ours_go_before_the_standard_variables_and_the_root_before_both(tmp_path: Path) -> None:
    """One process may read from one store with the standard credentials and write here with others."""
    (tmp_path / "secret").write_text("from-a-file\n")
    environment = {
        **ENVIRONMENT,
        "AWS_ENDPOINT_URL": "http://general:1",
        "AWS_ENDPOINT_URL_S3": "http://special:2",
        "DATACOORD_S3_ACCESS_KEY_ID": "ours",
        "DATACOORD_S3_SECRET_ACCESS_KEY_FILE": str(tmp_path / "secret"),
        "DATACOORD_S3_ATTEMPTS": "7",
    }
    settings = S3Settings.from_environment(environment)
    assert (settings.endpoint, settings.region) == ("http://special:2", "us-east-1")
    assert (settings.access_key, settings.secret_key, settings.attempts_max) == ("ours", "from-a-file", 7)

    ours = S3Settings.from_environment({**environment, "DATACOORD_S3_ENDPOINT": "http://ours:3"})
    assert ours.endpoint == "http://ours:3"

    file_system, place = open_s3("s3://bucket/a%20b/c?region=eu-west-3&endpoint_override=h:4&scheme=http", environment)
    assert (file_system.region, place) == ("eu-west-3", "bucket/a b/c")


@pytest.mark.parametrize(
    ("query", "endpoint", "scheme", "host"),
    [
        ("", "", "https", ""),
        ("", "h:1", "https", "h:1"),
        ("", "http://h:1/", "http", "h:1"),
        ("?scheme=http", "", "http", ""),
        ("?scheme=http", "https://h:1", "http", "h:1"),
        ("?endpoint_override=r:2", "http://h:1", "https", "r:2"),
        ("?endpoint_override=r:2&scheme=http", "", "http", "r:2"),
        ("?endpoint_override=", "http://h:1", "https", ""),
    ],
)
def test_the_scheme_of_a_root_counts_with_and_without_an_endpoint_of_its_own(
    query: str, endpoint: str, scheme: str, host: str
) -> None:
    """A scheme that is dropped without a word speaks TLS to a store that has none, and nobody knows why it does not answer."""
    file_system, _ = open_s3(f"s3://bucket/root{query}", {**ENVIRONMENT, "DATACOORD_S3_ENDPOINT": endpoint})
    settings = file_system.__reduce__()[1][0]  # what pickling it would carry along: nothing else shows them
    assert (settings["scheme"], settings["endpoint_override"]) == (scheme, host)


def test_an_endpoint_that_is_none_is_refused() -> None:
    """An error of pyarrow's own would be taken for a bug."""
    with pytest.raises(ConfigInvalidError, match="'ftp'"):
        open_s3("s3://bucket/root", {**ENVIRONMENT, "DATACOORD_S3_ENDPOINT": "ftp://h:1"})


@pytest.mark.parametrize(
    "variables",
    [
        {"DATACOORD_S3_ENDPIONT": "x"},
        {"DATACOORD_S3_ATTEMPTS": "0"},
        {"DATACOORD_S3_ATTEMPTS": "1.5"},
        {"DATACOORD_S3_CONNECT_TIMEOUT_SECONDS": "soon"},
        {"DATACOORD_S3_VIRTUAL_ADDRESSING": "perhaps"},
        {"DATACOORD_S3_ACCESS_KEY_ID": "half"},
        {"DATACOORD_S3_SECRET_ACCESS_KEY_FILE": "/nowhere"},
    ],
)
def test_a_wrong_variable_is_refused_by_name(variables: dict[str, str]) -> None:
    """A typo that is ignored means the wrong store, or no credentials."""
    with pytest.raises(ConfigInvalidError, match=next(iter(variables))):
        S3Settings.from_environment(variables)
