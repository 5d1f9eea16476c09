"""How the status page writes numbers, sizes and times."""


def number(value: float) -> str:
    """1 234 567, with thin spaces that do not break."""
    return f"{value:,.0f}".replace(",", "\u202f")


def rate(value: float) -> str:
    """A rate, short: 950, 12.3 k, 4.5 M."""
    for limit, unit in ((1e3, ""), (1e6, "\u202fk"), (1e9, "\u202fM")):
        if value < limit:
            scaled = value / (limit / 1e3)
            return f"{scaled:.0f}{unit}" if scaled >= 100 or not unit else f"{scaled:.1f}{unit}"
    return f"{value / 1e9:.1f}\u202fG"


def size(value: float) -> str:
    """Bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f}\u202f{unit}" if unit == "B" else f"{value:.1f}\u202f{unit}"
        value /= 1024
    return f"{value:.1f}\u202fTiB"


def duration(seconds: float) -> str:
    """A time span, in its largest unit."""
    seconds = max(seconds, 0.0)
    for limit, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:.0f}\u202f{unit}"
    return f"{seconds / 86_400:.0f}\u202fd"


def ago(time_ms: float, now_ms: float) -> str:
    """How long ago; `never` for 0."""
    return f"{duration((now_ms - time_ms) / 1000)} ago" if time_ms else "never"
