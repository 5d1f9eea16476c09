"""Sides measured in turns: every round runs each side once, beginning with another one each time; ratios are of one round.

A machine that slows down for a while then slows down both sides of a ratio, and not one.
"""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """One run of one side.

    Attributes:
        items: done in it.
        seconds: it took.
        latencies_ms: of its calls, where they matter.
        cpu_seconds: of all processes that took part, where that is known.
    """

    items: int
    seconds: float
    latencies_ms: Sequence[float] = ()
    cpu_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Items per second."""
        return self.items / self.seconds

    @property
    def cpu_us_per_item(self) -> float:
        """Processor time per item; unlike its rate, it hardly depends on what else the machine does."""
        return self.cpu_seconds * 1e6 / self.items

    def percentile_ms(self, percent: float) -> float:
        """A percentile of the latencies."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def per_second(sample: Sample) -> float:
    """The figure that most ratios are of."""
    return sample.per_second


def cpu_us_per_item(sample: Sample) -> float:
    """The figure that other work on the machine changes least."""
    return sample.cpu_us_per_item


@dataclass(frozen=True)
class Side:
    """Something that is measured.

    Attributes:
        name: as tables show it.
        run: runs it once.
    """

    name: str
    run: Callable[[], Awaitable[Sample]]


@dataclass
class Spread:
    """A figure over the rounds: median, smallest, largest."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    def shown(self, digits: int = 2) -> str:
        """As it stands in tables."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"

    def as_json(self) -> dict[str, float]:
        """As it stands in JSON."""
        return {
            "median": round(self.median, 4),
            "min": round(min(self.values), 4),
            "max": round(max(self.values), 4),
        }


async def interleave(sides: Sequence[Side], rounds: int) -> dict[str, list[Sample]]:
    """Runs every side once to warm up, then in every round once.

    Returns:
        the samples by name of the side, one per round, in the order of the rounds.
    """
    for side in sides:
        await side.run()
    samples: dict[str, list[Sample]] = {side.name: [] for side in sides}
    for number in range(rounds):
        first = number % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            samples[side.name].append(await side.run())
    return samples


def median_and_largest(values: Sequence[float]) -> str:
    """Of values of which there may be none, as tables show them."""
    return f"{statistics.median(values):,.0f} ({max(values):,.0f})" if values else "none"


def ratios(of: Sequence[Sample], to: Sequence[Sample], figure: Callable[[Sample], float]) -> Spread:
    """The ratio of a figure of two sides, round by round."""
    return Spread([figure(mine) / figure(other) for mine, other in zip(of, to, strict=True)])


def spread(samples: Sequence[Sample], figure: Callable[[Sample], float]) -> Spread:
    """A figure of one side over the rounds."""
    return Spread([figure(sample) for sample in samples])
