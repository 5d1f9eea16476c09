"""Row *Message size*: what is too large is refused, in words while words are possible, and the server goes on."""

import grpc
import pytest
from server.running_coordinator import CoordinatorThread

from datacoord.errors import Reason
from datacoord.limits import MESSAGE_BYTES_MAX, SERVER_MESSAGE_BYTES_MAX
from security.logins import Logins
from security.raw import METHODS, RawChannel, bearer

SAVE = METHODS["DataCoordService.SaveBinlogPaths"]


@pytest.mark.parametrize("size_bytes", [MESSAGE_BYTES_MAX + 1, SERVER_MESSAGE_BYTES_MAX + 1])
def test_a_message_that_is_too_large_is_refused_and_harms_nobody(
    guarded: CoordinatorThread, logins: Logins, size_bytes: int
) -> None:
    """Whoever can make the server hold what they send can make it hold everything it has."""
    shown = bearer(logins.tokens["writer"])
    with RawChannel(guarded.address) as channel:
        answer = channel.call(SAVE, bytes(size_bytes), shown)
        if size_bytes <= SERVER_MESSAGE_BYTES_MAX:
            assert answer.reason is Reason.BATCH_TOO_LARGE
        else:
            assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert channel.call(METHODS["CollectionService.ListCollections"], b"", shown).code is grpc.StatusCode.OK
