"""The history as people read it: every number says what it is, and what is not understood is shown as it is stored."""

import json
from typing import Any

import pytest

from coordinator.core.event_words import Names, in_words
from coordinator.core.events_forms import FORMS, Form

NAMES = Names(channels={1006: "orders_5v0"}, owners={11005: "land/0#11005"})

EXAMPLES: dict[Form, list[Any]] = {
    Form.CHECKPOINT: [1006, 12004, 77],
    Form.SAVE: [1006, 12004, None, [[2, 0, 5, 1, 1, 313]]],
    Form.OWNER: [1006, 12004, 11005, 0],
    Form.ASKED: [1006, 12004, 11005, 0],
    Form.COLLECTION: [5, 2],
    Form.FLUSH: [1006, 77],
    Form.SEGMENT: [313, "age"],
    Form.OTHER: ["RUN"],
}


@pytest.mark.parametrize("rpc", list(FORMS))
def test_every_kind_of_entry_has_words(rpc: str) -> None:
    """Packed numbers on the page send the person on call to the source code."""
    (text,) = in_words(rpc, json.dumps([EXAMPLES[FORMS[rpc]]]), NAMES)
    assert text
    assert "[[" not in text
    assert not text.startswith("[")


@pytest.mark.parametrize(
    ("rpc", "change", "text"),
    [
        (
            "AssignmentJob",
            [1006, 12004, 11005, 0],
            "orders_5v0: owned by land/0#11005 from epoch 12004 on, checkpoint 0",
        ),
        ("LeaseJob", [7, 12004, 0, 3], "channel 7: owned by nobody from epoch 12004 on, checkpoint 3"),
        (
            "MoveChannel",
            [1006, 8, 9, 3],
            "orders_5v0: another owner was asked for; held by owner 9, epoch 8, checkpoint 3",
        ),
        ("UpdateChannelCheckpoint", [1006, 8, 77], "orders_5v0: checkpoint 77, epoch 8"),
        (
            "SaveBinlogPaths",
            [1006, 8, 5, [[2, 0, 5, 1, 1, 313], [-1, 0, 5, 0, 0, 0]]],
            "orders_5v0: checkpoint 5, epoch 8; partition 2 (0, 5]: 1 object in segment 313; "
            "deletes of any partition (0, 5]: nothing in it",
        ),
        (
            "SaveBinlogPaths",
            [7, 8, None, [[2, 0, 5, 3]]],
            "channel 7: checkpoint stays, epoch 8; partition 2 (0, 5]: 3 objects",
        ),
        ("DropVirtualChannel", [7, 8, 5, []], "channel 7: dropped; checkpoint 5, epoch 8"),
        ("FlushAll", [7, 99], "channel 7: flush up to 99"),
        ("CreateCollection", [5, 0], "collection 5"),
        ("DropPartition", [5, 2], "collection 5, partition 2"),
        ("SealJob", [313, "age"], "segment 313: sealed by age"),
        ("SetSegmentState", [313, "DROPPED"], "segment 313: DROPPED"),
        ("GcControl", ["PAUSE", 0, "why"], "PAUSE 0 why"),
        ("GarbageJob", ["ROUND", 3, 40, 2], "a round: 3 objects (40 bytes) and 2 binlog rows deleted"),
    ],
)
def test_numbers_say_what_they_are(rpc: str, change: list[Any], text: str) -> None:
    """An epoch that is taken for a checkpoint leads a search astray."""
    assert in_words(rpc, json.dumps([change]), NAMES) == [text]


def test_in_the_history_of_one_channel_no_entry_repeats_its_name() -> None:
    """It stands above all of them."""
    assert in_words("Flush", "[[7,99]]", Names(of_one_channel=True)) == ["flush up to 99"]


def test_a_save_of_many_ranges_stays_readable() -> None:
    """A channel has a range in each partition, and there may be a thousand."""
    ranges = [[partition, 0, 5, 1, 1, 9] for partition in range(2, 12)]
    (text,) = in_words("SaveBinlogPaths", json.dumps([[7, 8, 5, ranges]]), NAMES)
    assert text.endswith("; and 7 more ranges")


@pytest.mark.parametrize(
    ("rpc", "changes"), [("Unheard", "[[1,2]]"), ("Flush", "[[1,2,3]]"), ("SealJob", "[7]"), ("GcControl", "[3]")]
)
def test_what_is_not_known_is_shown_as_it_is(rpc: str, changes: str) -> None:
    """After an upgrade that was taken back the history has entries of a newer version: the page must show them all the same."""
    assert in_words(rpc, changes, NAMES) == [json.dumps(change) for change in json.loads(changes)]
