"""What a person watches while a run works: a live bar with numbers, tables, warnings."""

import time

from rich.console import Console
from rich.table import Table

console = Console(stderr=True)


def warn(sentence: str):
    """One loud line; above the live display where there is one."""
    console.print(f"WARNING: {sentence}", style="bold red", markup=False, highlight=False)


def table(title: str, columns, rows):
    """Prints a table of results on standard output."""
    out = Table(title=title)
    for i, column in enumerate(columns):
        out.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        out.add_row(*(_cell(value) for value in row))
    Console().print(out)


def _cell(value) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


class Progress:
    """A bar over rollouts or steps, with the last metrics. A context manager."""

    def __init__(self, total: int, unit: str = "rollout", start: int = 0, every_s: float = 5.0):
        self.total, self.unit, self.done, self.every_s = total, unit, start, every_s
        self._last = 0.0
        self._row = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def update(self, done: int, row: dict | None = None):
        """`done` units are finished; `row` is the newest metrics row (any keys)."""
        self.done = done
        self._row.update(row or {})
        if time.monotonic() - self._last > self.every_s:
            self._last = time.monotonic()
            console.print(f"{self.unit} {done}/{self.total}", highlight=False)

    def note(self, text: str):
        """What is going on now, e.g. `compiling`; "" clears it."""
