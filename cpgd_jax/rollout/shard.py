"""What the host knows of one shard's slots, pages and prompts, and the requests that wait there."""

from collections import deque

import numpy as np

from cpgd_jax.rollout.records import Account, Pages, Row, Slots


class Shard:
    """Bookkeeping only: each change here goes with a program that moves the cache likewise."""

    def __init__(self, width: int, places: int):
        self.row = Row(*(np.zeros(width, np.int32) for _ in Row._fields))
        self.row = self.row._replace(prompt_id=np.zeros(width, np.uint32))
        self.row.request[:] = -1
        self.start_B = np.zeros(width, np.int32)
        self.pages: list[list[int]] = [[] for _ in range(width)]  # of each slot, in order
        self.page_start: dict[int, int] = {}  # of each page in use, its first column
        self.prompt_len_Q = np.zeros(places, np.int32)
        self.queue: deque[Row] = deque()  # of scalars

    @property
    def busy(self) -> np.ndarray:
        return np.flatnonzero(self.row.request >= 0)

    @property
    def idle(self) -> np.ndarray:
        return np.flatnonzero(self.row.request < 0)

    @property
    def waiting(self) -> int:
        """Requests beyond those that idle slots will take."""
        return len(self.queue) - len(self.idle)

    def free_places(self) -> list[int]:
        """Where no prompt is, or one whose responses have all ended."""
        used = {*self.row.prompt[self.busy].tolist(), *(int(row.prompt) for row in self.queue)}
        return [place for place in range(len(self.prompt_len_Q)) if place not in used]

    def fill(self, column: int) -> None:
        """Idle slots take requests of the queue; they write from `column` on."""
        for slot in self.idle:
            if not self.queue:
                return
            for field, value in zip(self.row, self.queue.popleft(), strict=True):
                field[slot] = value
            self.start_B[slot], self.pages[slot] = column, []

    def update(self, slots: Slots, taken: int) -> None:
        """The state after a run of the decode loop that took so many requests of the queue."""
        for slot in np.flatnonzero(slots.row.request != self.row.request):
            self._free(self.pages[slot])
            self.pages[slot] = []
        self.row, self.start_B = slots.row, slots.start_B
        for _ in range(taken):
            self.queue.popleft()

    def page_out(self, width: int, pages: int) -> np.ndarray:
        """Gives each slot's recent columns a page: [B] its index, `pages` = none."""
        at_B = np.full(len(self.pages), pages, np.int32)
        free = iter(page for page in range(pages) if page not in self.page_start)
        for slot in self.busy:
            if self.start_B[slot] < width:
                at_B[slot] = page = next(free)
                self.page_start[page] = int(self.start_B[slot])
                self.pages[slot].append(page)
        self.start_B[:] = 0
        return at_B

    def narrow(self, width: int) -> np.ndarray:
        """Keeps the busy slots, which are at most `width`: [width] where each of them was."""
        idle = self.idle[: max(0, width - len(self.busy))]
        kept = np.sort(np.concatenate([self.busy, idle])).astype(np.int32)
        self.row = Row(*(x[kept] for x in self.row))
        self.start_B, self.pages = self.start_B[kept], [self.pages[slot] for slot in kept]
        return kept

    def renumber_pages(self, pages: int) -> np.ndarray:
        """Moves the pages in use to the front: [pages] where each was; past them: any."""
        used = sorted(self.page_start)
        now = {page: index for index, page in enumerate(used)}
        self.page_start = {now[page]: start for page, start in self.page_start.items()}
        self.pages = [[now[page] for page in of_slot] for of_slot in self.pages]
        return np.pad(np.asarray(used, np.int32), (0, pages - len(used)))

    def renumber_places(self, places: int) -> np.ndarray:
        """Moves the prompts in use to the front, likewise."""
        free = set(self.free_places())
        used = [place for place in range(len(self.prompt_len_Q)) if place not in free]
        now = np.zeros(len(self.prompt_len_Q), np.int32)
        now[used] = np.arange(len(used))
        self.row = self.row._replace(prompt=now[self.row.prompt])
        self.queue = deque(row._replace(prompt=now[row.prompt]) for row in self.queue)
        kept = np.pad(np.asarray(used, np.int32), (0, places - len(used)))
        self.prompt_len_Q = self.prompt_len_Q[kept]
        return kept

    def account(self, pages: int, pages_a_slot: int, queue_rows: int) -> Account:
        """As the decode loop reads it."""
        pages_B = np.array([len(of_slot) for of_slot in self.pages], np.int32)
        return Account(
            Slots(self.row, self.start_B, pages_B),
            self._owners(pages, pages_a_slot),
            self._queue(queue_rows),
            self.prompt_len_Q,
        )

    def _owners(self, pages: int, pages_a_slot: int) -> Pages:
        slot_U, start_U = np.zeros(pages, np.int32), np.zeros(pages, np.int32)
        order_U = np.full(pages, pages_a_slot, np.int32)
        page_BJ = np.full((len(self.pages), pages_a_slot), pages, np.int32)
        for slot, of_slot in enumerate(self.pages):
            page_BJ[slot, : len(of_slot)] = of_slot
            slot_U[of_slot], order_U[of_slot] = slot, np.arange(len(of_slot))
        for page, start in self.page_start.items():
            start_U[page] = start
        return Pages(slot_U, order_U, start_U, page_BJ)

    def _queue(self, rows: int) -> Row:
        nothing = Row(-1, *[0] * (len(Row._fields) - 1))
        filled = [*self.queue, *[nothing] * (rows - len(self.queue))]
        fields = (np.asarray(values) for values in zip(*filled, strict=True))
        return Row(*(x.astype(own.dtype) for x, own in zip(fields, self.row, strict=True)))

    def _free(self, pages: list[int]) -> None:
        for page in pages:
            del self.page_start[page]
