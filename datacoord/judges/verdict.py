"""What a judge says."""

from dataclasses import dataclass

SAMPLES_MAX = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """A comparison of what was read back with what should be there, both ways.

    Attributes:
        rows: rows read back.
        expected_rows: rows that should be there.
        missing: keys that should be there and are not.
        extra: keys that are there and should not be.
        changed: keys that are there with other values than they should have.
        duplicates: rows beyond the first of their key.
        samples: some of the findings, for people.
    """

    rows: int
    expected_rows: int
    missing: int
    extra: int
    changed: int
    duplicates: int
    samples: tuple[str, ...]

    @property
    def mismatches(self) -> int:
        """Keys that are not as they should be; duplicates are counted apart."""
        return self.missing + self.extra + self.changed

    @property
    def is_right(self) -> bool:
        """Nothing was found."""
        return self.mismatches == 0 and self.duplicates == 0
