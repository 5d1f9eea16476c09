"""Small plots as inline SVG: a line over an hour, with the largest value and the latest written out."""

from collections.abc import Callable, Sequence
from typing import Final

from markupsafe import Markup

from coordinator.web.page.history import SAMPLE_SECONDS, SAMPLES_MAX, Sample

WIDTH: Final = 600
HEIGHT: Final = 120
_SPAN_MS: Final = SAMPLES_MAX * SAMPLE_SECONDS * 1000
_GAP_MS: Final = 3 * SAMPLE_SECONDS * 1000
"""Without a sample for so long the line breaks: a straight line would claim what nobody saw."""


def plot(
    samples: Sequence[Sample], value: Callable[[Sample], float], text: Callable[[float], str], label: str
) -> Markup:
    """Draws a line over the last hour.

    Args:
        samples: oldest first.
        value: what is plotted of a sample; never negative.
        text: how a value is written.
        label: what it is, for people who hear the page.
    """
    if not samples:
        return Markup('<p class="quiet">No samples yet; the first comes within half a minute.</p>')
    top = max([1e-9, *(value(sample) for sample in samples)])
    end_ms = samples[-1].time_ms
    lines: list[list[str]] = [[]]
    before_ms = samples[0].time_ms
    for sample in samples:
        if sample.time_ms - before_ms > _GAP_MS:
            lines.append([])
        before_ms = sample.time_ms
        x = WIDTH * (1 - (end_ms - sample.time_ms) / _SPAN_MS)
        y = HEIGHT - (HEIGHT - 4) * value(sample) / top - 2
        lines[-1].append(f"{x:.1f},{y:.1f}")
    drawn = Markup("").join(
        Markup('<polyline points="{}"/>').format(" ".join(points if len(points) > 1 else points * 2))
        for points in lines
    )
    return Markup(
        '<figure><svg viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        '<line x1="0" y1="{base}" x2="{w}" y2="{base}"/>{drawn}</svg>'
        "<figcaption><span>1 h ago</span><span>largest {top}</span><span>now {now}</span></figcaption></figure>"
    ).format(
        w=WIDTH,
        h=HEIGHT,
        base=HEIGHT - 1,
        label=label,
        drawn=drawn,
        top=text(top if top > 1e-9 else 0.0),
        now=text(value(samples[-1])),
    )
