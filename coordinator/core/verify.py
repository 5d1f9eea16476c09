"""What `datacoord verify` can find: the kinds of findings, each with what it means and what to do. The checks are beside it.

A *fault* is a state that no sequence of accepted calls, crashes and kills leads to. A *note* is none: it is what kills, lost
races and restores leave behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kinds of findings, by the stable names that scripts see."""

    MISSING_OBJECT = "missing_object"
    WRONG_SIZE = "wrong_size"
    WRONG_CONTENT = "wrong_content"
    NEWER_THAN_DATABASE = "newer_than_database"
    DOUBLED_OBJECT = "doubled_object"
    DOUBLED_RANGE = "doubled_range"
    GAP = "gap"
    PROGRESS_BACK = "progress_back"
    CHECKPOINT_BACK = "checkpoint_back"
    EPOCH_BACK = "epoch_back"
    CHECKPOINT_BEYOND_ROWS = "checkpoint_beyond_rows"
    SEGMENT_COUNTERS = "segment_counters"
    GROWING_POINTER = "growing_pointer"
    FLUSH_TARGET = "flush_target"
    TOMBSTONE = "tombstone"
    OWNER = "owner"
    NUMBERS = "numbers"
    LOST_ROWS = "lost_rows"
    HISTORY_INCOMPLETE = "history_incomplete"
    PENDING_OBJECT = "pending_object"
    ORPHAN = "orphan"
    UNKNOWN_OBJECT = "unknown_object"
    UNKNOWN_DIRECTORY = "unknown_directory"
    UNKNOWN_EVENT = "unknown_event"


@dataclass(frozen=True, slots=True)
class About:
    """What a kind of finding means.

    Attributes:
        fault: True: something is wrong; False: a note.
        meaning: one sentence.
        advice: what to do.
    """

    fault: bool
    meaning: str
    advice: str


ABOUT: Mapping[Kind, About] = {
    Kind.MISSING_OBJECT: About(
        True,
        "A row names an object that does not exist.",
        "Readers of the collection fail. Restore the object from a copy or a version of the bucket. After a restore of the "
        "database: what was dropped and collected in the lost time; drop it again.",
    ),
    Kind.WRONG_SIZE: About(
        True,
        "An object has another size than its row says.",
        "Somebody else wrote or cut it. Restore it from a copy; find out who may write there.",
    ),
    Kind.WRONG_CONTENT: About(
        True,
        "An object cannot be read, or holds other rows than its row says.",
        "Restore it from a copy; check the disk or the bucket.",
    ),
    Kind.NEWER_THAN_DATABASE: About(
        True,
        "An object was written under an epoch that its channel has not reached, or in a channel that there is not yet: the "
        "database is older than its objects.",
        "It was restored or failed over. Stop the coordinators and run `datacoord restore` before anything is served.",
    ),
    Kind.DOUBLED_OBJECT: About(
        True, "Two rows name one object.", "Readers see its rows twice. Keep the database as it is and report a bug."
    ),
    Kind.DOUBLED_RANGE: About(
        True,
        "Two ranges of a lane overlap, or objects stand in a segment that no call registered them for.",
        "Rows may be there twice. Keep the database as it is and report a bug.",
    ),
    Kind.GAP: About(
        True,
        "A range of a lane starts beyond the end of the one before it.",
        "Rows in between are missing. Keep the database as it is and report a bug; land the channel again into a new collection.",
    ),
    Kind.PROGRESS_BACK: About(
        True,
        "The progress of a lane lies before the end of what is registered.",
        "The next save could double rows. Stop the coordinators; was a table edited, or a backup restored without "
        "`datacoord restore`?",
    ),
    Kind.CHECKPOINT_BACK: About(
        True,
        "A checkpoint went back.",
        "Was a table edited, or a backup restored without `datacoord restore`? Replay begins too early, which is harmless by "
        "itself.",
    ),
    Kind.EPOCH_BACK: About(
        True,
        "A channel was written under an epoch that was over.",
        "A zombie got through: snapshots may be off their cut. Keep the database as it is and report a bug.",
    ),
    Kind.CHECKPOINT_BEYOND_ROWS: About(
        True,
        "The checkpoint has passed rows that were not registered.",
        "A new owner would not read them again. Does the source give the same rows when it is read again? If it does, report a "
        "bug.",
    ),
    Kind.SEGMENT_COUNTERS: About(
        True,
        "The counters of a segment are not the sums over its objects.",
        "Rows of `binlogs` are missing or were added by hand. Restore the database from a backup and run `datacoord restore`.",
    ),
    Kind.GROWING_POINTER: About(
        True,
        "A lane and its growing segment do not name each other.",
        "The next save of the lane fails or opens a second segment. Report a bug.",
    ),
    Kind.FLUSH_TARGET: About(
        True,
        "A channel waits for another flush target than its flushes have set.",
        "A flush may never be done, or seal too early. Flush again; report a bug.",
    ),
    Kind.TOMBSTONE: About(
        True,
        "Something that is dropped is alive in part.",
        "Readers may see dropped rows. Report a bug.",
    ),
    Kind.OWNER: About(
        True,
        "A channel names an owner that does not exist or is over.",
        "Nobody works on it. Move it, or end the coordinators and run `datacoord restore`.",
    ),
    Kind.NUMBERS: About(
        True,
        "A number stands in a row that its counter has not given out yet, or that was given out twice.",
        "It will be given out again: stop the coordinators and run `datacoord restore`.",
    ),
    Kind.LOST_ROWS: About(
        True,
        "The history says that objects were registered whose rows are gone.",
        "Readers miss rows. Restore the database from a backup and run `datacoord restore`.",
    ),
    Kind.HISTORY_INCOMPLETE: About(
        True,
        "A channel is further than its history says.",
        "Was a table edited by hand? Nothing is wrong with the rows if no other fault is listed.",
    ),
    Kind.PENDING_OBJECT: About(
        False,
        "An object has no row and may still get one: its writer is the owner.",
        "Nothing. It is registered within moments, or becomes an orphan when the channel's next range or owner comes.",
    ),
    Kind.ORPHAN: About(
        False,
        "An object has no row and can never get one: its writer died, lost a race, or lived in a time that a restore undid.",
        "Nothing. Readers do not see it; garbage collection deletes it.",
    ),
    Kind.UNKNOWN_OBJECT: About(
        False,
        "The name of an object is none of Datacoord's, or it belongs to a channel that this database does not know.",
        "Nobody deletes it. If nobody else uses the directory and no other database does, delete it by hand.",
    ),
    Kind.UNKNOWN_DIRECTORY: About(
        False,
        "A directory of the storage root looks like a collection's, and no collection of this database has it.",
        "Nobody deletes it. After a restore: the collection was created in the lost time; create and land it again, then delete "
        "the directory by hand.",
    ),
    Kind.UNKNOWN_EVENT: About(
        False,
        "The history has an entry of a kind that this version does not know; what it changed is not compared.",
        "Use the version of the command that fits the coordinator.",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        kind: see there.
        subject: what it is about: an object's path, a segment, a lane, …
        detail: the facts, one sentence.
        channel: name of the channel; empty where there is none.
        partition_id: the lane; None where it is about none.
        collection: name of the collection; empty where there is none.
    """

    kind: Kind
    subject: str
    detail: str
    channel: str = ""
    partition_id: int | None = None
    collection: str = ""

    @property
    def fault(self) -> bool:
        """Whether something is wrong."""
        return ABOUT[self.kind].fault
