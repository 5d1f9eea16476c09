"""Row *Authorisation*: each role may do what the table says, and a method that nobody decided about is not served at all."""

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from server.running_coordinator import CoordinatorThread

from coordinator.rpc.gate import Gate
from coordinator.rpc.guard import Guard
from coordinator.rpc.roles import ROLES, ROLES_BY_WORD, Role, required_role
from coordinator.web.metrics import Metrics
from datacoord.errors import Reason
from security.logins import ROLES as WORDS
from security.logins import Logins
from security.raw import METHODS, RawChannel, bearer

REFUSED = {Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED}


def test_every_method_of_the_contract_has_a_role_and_no_other_has() -> None:
    """A row that nothing stands behind is a typing error, and its method has another row, or none."""
    listed = {f"{service}.{method}" for service, methods in ROLES.items() for method in methods}
    assert listed == set(METHODS)


async def test_a_method_without_a_role_stops_the_start() -> None:
    """A method that is added and forgotten would be open to everybody (milvus #53415), or be refused to everybody at night."""
    file = descriptor_pb2.FileDescriptorProto(name="tests/forgotten.proto", package="tests", syntax="proto3")
    file.message_type.add(name="Nothing")
    service = file.service.add(name="AdminService")
    for method in ("GcControl", "DeleteEverything"):
        service.method.add(name=method, input_type=".tests.Nothing", output_type=".tests.Nothing")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    guard = Guard(Metrics(), Gate(None), deadline_seconds_max=1, calls_max=1)

    class Servicer:
        GcControl = DeleteEverything = None

    with pytest.raises(LookupError, match=r"AdminService\.DeleteEverything has no role"):
        guard.handlers(pool.FindServiceByName("tests.AdminService"), Servicer())
    with pytest.raises(LookupError):
        required_role("NoSuchService", "GcControl")


@pytest.mark.parametrize("word", WORDS)
def test_each_role_may_call_what_the_table_says_and_nothing_else(
    guarded: CoordinatorThread, logins: Logins, word: str
) -> None:
    """A reader that can drop a collection is found by whoever needs it least."""
    role = ROLES_BY_WORD[word]
    with RawChannel(guarded.address) as channel:
        answers = {name: channel.call(path, b"", bearer(logins.tokens[word])) for name, path in METHODS.items()}
    for name, answer in answers.items():
        required = ROLES[name.partition(".")[0]][name.partition(".")[2]]
        if role < required:
            assert answer.reason is Reason.PERMISSION_DENIED, name
            assert answer.code is grpc.StatusCode.PERMISSION_DENIED
            assert answer.error is not None
            assert answer.error.metadata["required_role"] == required.word
        else:
            assert answer.reason not in REFUSED, (name, answer)
    assert any(answer.code is grpc.StatusCode.OK for answer in answers.values())


def test_what_destroys_is_for_admins() -> None:
    """The table is short enough to be read, and long enough to hide a slip: what cannot be undone is said once more here."""
    for name in ("DropCollection", "AlterCollection"):
        assert required_role("CollectionService", name) is Role.ADMIN
    for name in ("SetSegmentState", "MarkSegmentsDropped", "GcControl", "MoveChannel", "FlushAll"):
        assert required_role("AdminService", name) is Role.ADMIN
    readers = {
        f"{service}.{name}" for service, roles in ROLES.items() for name, role in roles.items() if role is Role.READER
    }
    assert all(name.partition(".")[2].startswith(("List", "Describe", "Get", "Explain")) for name in readers)
