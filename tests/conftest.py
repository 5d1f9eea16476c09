"""What all tests share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from support.kafka import KafkaBroker

# A machine that is busy for a moment must not fail a test, and a failure must say how to repeat it.
settings.register_profile("datacoord", deadline=None, print_blob=True)
settings.load_profile("datacoord")


@pytest.fixture(scope="session")
def kafka() -> Iterator["KafkaBroker"]:
    """A broker of Kafka, one for all who need it."""
    from support.kafka import KafkaBroker

    broker = KafkaBroker()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()
