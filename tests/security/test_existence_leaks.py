"""Row *Existence leaks*: whoever may not ask learns nothing of what there is."""

from server.running_coordinator import CoordinatorThread, definition

from datacoord.errors import Reason
from datacoord.v1 import admin_pb2, collection_pb2
from security.logins import Logins
from security.raw import METHODS, RawChannel, bearer


def test_a_refusal_is_the_same_whether_the_thing_exists_or_not(guarded: CoordinatorThread, logins: Logins) -> None:
    """NOT_FOUND for one name and PERMISSION_DENIED for another is a list of names, one guess at a time."""
    with logins.client(guarded.address, "admin") as admin:
        admin.create_collection(definition("secret_project"))
    with RawChannel(guarded.address) as channel:
        for shown, reason in (
            (bearer(logins.tokens["reader"]), Reason.PERMISSION_DENIED),
            ((), Reason.UNAUTHENTICATED),
        ):
            answers = [
                channel.call(
                    METHODS["CollectionService.DropCollection"],
                    collection_pb2.DropCollectionRequest(collection_name=name).SerializeToString(),
                    shown,
                )
                for name in ("secret_project", "no_such_project")
            ]
            errors = [answer.error for answer in answers]
            assert errors[0] is not None
            assert errors[1] is not None
            assert answers[0].reason is reason
            assert (errors[0].message, errors[0].metadata) == (errors[1].message, errors[1].metadata)
            assert "project" not in errors[0].message


def test_permission_comes_before_the_request_is_read(guarded: CoordinatorThread, logins: Logins) -> None:
    """A parser that strangers can reach is a door; and what it answers tells them what the contract is."""
    malformed = b"\xff\xff\xff"
    path = METHODS["AdminService.MoveChannel"]
    with RawChannel(guarded.address) as channel:
        assert channel.call(path, malformed).reason is Reason.UNAUTHENTICATED
        assert channel.call(path, malformed, bearer(logins.tokens["writer"])).reason is Reason.PERMISSION_DENIED
        assert channel.call(path, malformed, bearer(logins.tokens["admin"])).reason is Reason.INVALID_FIELD
        good = admin_pb2.MoveChannelRequest(channel_name="none").SerializeToString()
        assert channel.call(path, good, bearer(logins.tokens["admin"])).reason is Reason.CHANNEL_NOT_FOUND
