"""Who may call what: one table. A method of the contract that is not in it stops the start.

Each role may do what the one before it may. A reader learns, a writer lands rows, an admin changes what others rely on.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class Role(IntEnum):
    """What the holder of a token may do."""

    READER = 1
    WRITER = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """As it is written in files and sentences."""
        return self.name.lower()


ROLES_BY_WORD: Final[Mapping[str, Role]] = {role.word: role for role in Role}

ROLES: Final[Mapping[str, Mapping[str, Role]]] = {
    "DataCoordService": {
        "RegisterDataNode": Role.WRITER,
        "ReportDataNodeTtMsgs": Role.WRITER,
        "WatchDmChannels": Role.WRITER,
        "ClaimChannels": Role.WRITER,
        "ReleaseChannels": Role.WRITER,
        "GetRecoveryInfo": Role.WRITER,
        "SaveBinlogPaths": Role.WRITER,
        "UpdateChannelCheckpoint": Role.WRITER,
        "DropVirtualChannel": Role.WRITER,
    },
    "CollectionService": {
        # A sink creates the collection it is to write, and a datanode drops a partition when its log says so.
        "CreateCollection": Role.WRITER,
        "DescribeCollection": Role.READER,
        "ListCollections": Role.READER,
        "AlterCollection": Role.ADMIN,
        "DropCollection": Role.ADMIN,
        "CreatePartition": Role.WRITER,
        "DropPartition": Role.WRITER,
        "ListBinlogs": Role.READER,
    },
    "AdminService": {
        "ListChannels": Role.READER,
        "ListSegments": Role.READER,
        "ListDataNodes": Role.READER,
        "ListEvents": Role.READER,
        "Explain": Role.READER,
        # What a batch does at its end, to be read by the next one.
        "Flush": Role.WRITER,
        "GetFlushState": Role.READER,
        "FlushAll": Role.ADMIN,
        "GetFlushAllState": Role.READER,
        "SetSegmentState": Role.ADMIN,
        "MarkSegmentsDropped": Role.ADMIN,
        "GcControl": Role.ADMIN,
        "MoveChannel": Role.ADMIN,
    },
}


READS: Final = frozenset(
    {"GetRecoveryInfo"}
    | {method for methods in ROLES.values() for method, role in methods.items() if role is Role.READER}
)
"""What changes nothing: a call that ran out of time may simply be repeated, its outcome is no question."""


def required_role(service: str, method: str) -> Role:
    """The least role that may call a method.

    Args:
        service: name of the service, without its package.
        method: name of the method.

    Raises:
        LookupError: nobody has decided who may call it.
    """
    try:
        return ROLES[service][method]
    except KeyError:
        raise LookupError(
            f"{service}.{method} has no role; say in coordinator/rpc/roles.py who may call it, and in docs/reference/rpcs.md"
        ) from None


ADMITTED_EARLY: Final = frozenset({"SaveBinlogPaths", "UpdateChannelCheckpoint"})
"""Writes that are refused before they have arrived where there is no room: under overload a refusal must cost next to nothing."""
