"""What a person watches while a run works: a live bar with numbers, tables, warnings.

Progress and warnings go to standard error, results to standard output. Where standard error is not
a terminal (a log file, CI) the bar becomes one plain line every few seconds.
"""

import sys
import time
from collections import deque

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

console = Console(stderr=True)

# name in a metrics row -> label, and how to write it; shown in this order when present
WATCHED = {
    "eval/greedy_accuracy": ("held-out", "{:.1%}"),
    "reward/accuracy": ("accuracy", "{:.1%}"),
    "reward/format": ("format", "{:.1%}"),
    "loss/nll": ("nll", "{:.3f}"),
    "response/length_mean": ("length", "{:.0f}"),
    "response/truncated_frac": ("truncated", "{:.1%}"),
    "ratio/clip_frac_low": ("clip low", "{:.2%}"),
    "ratio/clip_frac_high": ("clip high", "{:.2%}"),
    "ratio/max": ("ratio max", "{:.3g}"),
    "entropy": ("entropy", "{:.2f}"),
    "grad_norm": ("grad norm", "{:.3g}"),
    "rollout/tokens_per_s": ("rollout tok/s", "{:,.0f}"),
    "train/tokens_per_s": ("train tok/s", "{:,.0f}"),
}


def warn(sentence: str):
    """One loud line; above the live display where there is one."""
    console.print(
        f"WARNING: {sentence}", style="bold red", markup=False, highlight=False, soft_wrap=True
    )


def table(title: str, columns, rows):
    """Prints a table of results on standard output; a float is shown to three decimals."""
    out = Table(title=Text(title), title_justify="left")
    for i, column in enumerate(columns):
        out.add_column(Text(str(column)), justify="left" if i == 0 else "right")
    for row in rows:
        out.add_row(*(Text(_cell(value)) for value in row))
    stdout = Console()
    stdout.print(out, width=None if stdout.is_terminal else 200)


def _cell(value) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


class Progress:
    """A bar over rollouts or steps with the time left and the newest numbers. A context manager."""

    def __init__(self, total, unit="rollout", start=0, every_s=5.0, clock=time.monotonic):
        """`start`: units done by an earlier process; `every_s`: seconds between plain lines."""
        self.total, self.unit, self.done, self.every_s = total, unit, start, every_s
        self._clock, self._began = clock, clock()
        self._ticks = deque([(self._began, start)], maxlen=20)
        self._row, self._note = {}, ""
        self._printed_at, self._printed_done = -float("inf"), None
        self._live = None

    def __enter__(self):
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=console,
                refresh_per_second=4,
                redirect_stdout=sys.stdout.isatty(),  # a pipe gets exactly what is printed
            )
            self._live.start()
        return self

    def __exit__(self, *_):
        self._note = ""
        if self._live:
            self._live.stop()
        elif self.done != self._printed_done:
            self._print()

    def update(self, done: int, row: dict | None = None):
        """`done` units are finished; `row` is the newest metrics row, with whatever keys it has."""
        if done > self._ticks[-1][1]:
            self._ticks.append((self._clock(), done))
        self.done, self._note = done, ""
        self._row.update({k: v for k, v in (row or {}).items() if k in WATCHED})
        if not self._live and self._clock() - self._printed_at >= self.every_s:
            self._print()

    def note(self, text: str):
        """What is going on until the next update, e.g. `evaluating`."""
        self._note = text

    @property
    def seconds_left(self) -> float | None:
        """By the pace of the last 20 units; the first, which compiles, counts only at the start."""
        ticks = list(self._ticks)[1:] if len(self._ticks) > 2 else list(self._ticks)
        (t0, d0), (t1, d1) = ticks[0], ticks[-1]
        if d1 == d0:
            return None
        left = (self.total - d1) * (t1 - t0) / (d1 - d0)
        return max(0.0, left - (self._clock() - t1))

    def _numbers(self) -> list[tuple[str, str]]:
        return [
            (label, form.format(self._row[name]) if self._row[name] is not None else "null")
            for name, (label, form) in WATCHED.items()
            if name in self._row
        ]

    def _times(self) -> str:
        left = self.seconds_left
        ahead = "" if left is None or self.done >= self.total else f", {clock_face(left)} left"
        return f"{clock_face(self._clock() - self._began)}{ahead}"

    def _print(self):
        self._printed_at, self._printed_done = self._clock(), self.done
        numbers = "  ".join(f"{label} {value}" for label, value in self._numbers())
        line = f"{self.unit} {self.done}/{self.total}  {self._times()}  {numbers}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _render(self):
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(self.unit),
            ProgressBar(total=max(self.total, 1), completed=self.done, width=32),
            Text(f"{self.done}/{self.total}", style="bold"),
            Text(self._times(), style="dim"),
            Text(self._note, style="italic"),
        )
        cells = [Text.assemble((f"{k} ", "dim"), (v, "bold")) for k, v in self._numbers()]
        return Group(bar, Columns(cells, padding=(0, 2), equal=True)) if cells else bar


def clock_face(seconds: float) -> str:
    """75 -> 1:15, 4000 -> 1:06:40."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
