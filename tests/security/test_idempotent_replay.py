"""Row *Idempotent replay*: a repetition is answered by the facts, and only to whoever may make the call."""

from server.running_coordinator import CoordinatorThread, claim, definition, save_part

from datacoord.errors import Reason
from datacoord.tokens import new_token
from datacoord.v1 import common_pb2, data_coord_pb2
from security.logins import Logins
from security.raw import METHODS, RawChannel, bearer


def test_a_replay_of_a_call_is_no_way_around_permission(guarded: CoordinatorThread, logins: Logins) -> None:
    """A call that was answered once and is answered again from memory is answered to anybody who has seen it on the wire."""
    with logins.client(guarded.address, "writer") as writer:
        writer.create_collection(definition())
        part = save_part(claim(writer)[0], 0, 5, 1)
        (result,) = writer.save_binlog_paths([part])
        assert result.outcome == common_pb2.OUTCOME_APPLIED
    body = data_coord_pb2.SaveBinlogPathsRequest(channels=[part]).SerializeToString()
    path = METHODS["DataCoordService.SaveBinlogPaths"]
    with RawChannel(guarded.address) as channel:
        assert channel.call(path, body).reason is Reason.UNAUTHENTICATED
        assert channel.call(path, body, bearer(new_token())).reason is Reason.UNAUTHENTICATED
        assert channel.call(path, body, bearer(logins.tokens["reader"])).reason is Reason.PERMISSION_DENIED
        again = channel.call(path, body, bearer(logins.tokens["writer"]))
    (repeated,) = data_coord_pb2.SaveBinlogPathsResponse.FromString(again.body).results
    assert repeated.outcome == common_pb2.OUTCOME_ALREADY_APPLIED


def test_nothing_of_a_request_can_be_bound_to_another_one() -> None:
    """A key that a caller chooses can be chosen by another: the contract has none, a range names its start instead."""
    fields = {
        field.name
        for name, message in data_coord_pb2.DESCRIPTOR.message_types_by_name.items()
        if name.endswith("Request")
        for field in message.fields
    }
    assert not fields & {"request_id", "idempotency_key", "client_token"}
    assert {"channels", "node_id"} <= fields
