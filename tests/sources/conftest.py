"""What several sources' tests share."""

from collections.abc import Iterator

import pytest
from support.kafka import KafkaBroker


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A broker."""
    broker = KafkaBroker()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()
