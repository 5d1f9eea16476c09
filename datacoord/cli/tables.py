"""Tables for people, as wide as the terminal. Where it is narrow, columns of little value go, and names lose their middle."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 10_000
"""Columns of an output that is no terminal: nothing is cut where a program reads."""

GAP = 2
NAME_CHARS = 30
"""What a name or a sentence gets before columns of more value go: nobody tells apart names of which less is left."""
FLEXIBLE_CHARS_MIN = 8
SUFFIX_CHARS = 13
"""The end of a channel's name, by which channels of a collection differ: `_123456v1234`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        heading: in its first line.
        number: aligned to the right.
        name: of something: on one line, in the middle of which it is shortened.
        prose: sentences: it takes several lines, rather than be cut.
        spare: it goes where there is no room, the largest first; 0 = it never goes.
    """

    heading: str
    number: bool = False
    name: bool = False
    prose: bool = False
    spare: int = 0

    @property
    def flexible(self) -> bool:
        """Whether it can be narrower than what it holds."""
        return self.name or self.prose


name_column = partial(Column, name=True)
number_column = partial(Column, number=True)


def console() -> Console:
    """Standard output; as wide as it takes where it is no terminal."""
    out = Console(highlight=False, markup=False)
    return out if out.is_terminal else Console(highlight=False, markup=False, width=WIDE)


def print_table(
    columns: Iterable[str | Column],
    rows: Iterable[Iterable[object]],
    *,
    numbers: Iterable[str] = (),
    empty: str,
    wide: bool = False,
) -> None:
    """Prints a table.

    Args:
        columns: with their headings; one that is only a heading takes several lines where it must.
        rows: cells; values of callers are shown as they are, never read as markup.
        numbers: headings of the columns to align to the right, of those that are only headings.
        empty: what to say where there is no row.
        wide: all columns and all of them whole, however wide the terminal is.
    """
    right = set(numbers)
    described = [
        column if isinstance(column, Column) else Column(column, number=column in right, prose=column not in right)
        for column in columns
    ]
    out = Console(highlight=False, markup=False, width=WIDE) if wide else console()
    table, hidden = fitted(described, rows, out.width)
    if not table.row_count:
        out.print(empty)
        return
    out.print(table, soft_wrap=wide)
    if hidden:
        out.print(f"Too narrow for: {', '.join(hidden)}. -o wide shows them.", style="dim")


def fitted(columns: Sequence[Column], rows: Iterable[Iterable[object]], width: int) -> tuple[Table, list[str]]:
    """Makes a table that is at most so wide.

    Args:
        columns: all of them.
        rows: a cell for each column.
        width: of the terminal.

    Returns:
        the table, and the headings of the columns that found no room.
    """
    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    natural = [
        max([cell_len(column.heading), *(cell_len(row[number].plain) for row in cells)])
        for number, column in enumerate(columns)
    ]
    kept = _kept(columns, natural, width)
    widths = _widths(columns, natural, kept, width)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for number in kept:
        column = columns[number]
        table.add_column(
            column.heading,
            justify="right" if column.number else "left",
            overflow="fold" if column.prose else "ellipsis",
            no_wrap=not column.prose,
            max_width=widths[number],
        )
    for row in cells:
        table.add_row(*(_cell(columns[number], row[number], widths[number]) for number in kept))
    return table, [column.heading for number, column in enumerate(columns) if number not in kept]


def shorten(name: str, width: int) -> str:
    """A name without its middle: channels of a collection differ at their ends.

    Args:
        name: the name.
        width: characters it may take.
    """
    if len(name) <= width:
        return name
    tail = min(max(width // 2, SUFFIX_CHARS), max(width - 2, 1))
    return f"{name[: max(width - 1 - tail, 0)]}…{name[-tail:]}"


def _kept(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """The columns that find room: those not to spare in any case, then the others by their value."""
    wanted = [
        GAP + (min(chars, NAME_CHARS) if column.flexible else chars)
        for column, chars in zip(columns, natural, strict=True)
    ]
    left = width + GAP
    kept = []
    for number in sorted(range(len(columns)), key=lambda number: columns[number].spare):
        if not columns[number].spare or wanted[number] <= left:
            kept.append(number)
            left -= wanted[number]
    return sorted(kept)


def _widths(columns: Sequence[Column], natural: Sequence[int], kept: Sequence[int], width: int) -> dict[int, int]:
    """Widths of the columns kept: what the others leave is shared among names and prose, the shortest served first."""
    widths = {number: natural[number] for number in kept}
    flexible = sorted((number for number in kept if columns[number].flexible), key=lambda number: natural[number])
    rigid = sum(natural[number] for number in kept if not columns[number].flexible)
    left = width - rigid - GAP * (len(kept) - 1)
    for turn, number in enumerate(flexible):
        share = left // (len(flexible) - turn)
        widths[number] = min(natural[number], max(share, FLEXIBLE_CHARS_MIN))
        left -= widths[number]
    return widths


def _cell(column: Column, cell: Text, width: int) -> Text:
    if not column.name or cell_len(cell.plain) <= width:
        return cell
    return Text(shorten(cell.plain, width), cell.style)
