"""The sizes of what a rollout holds on a device: known before any of it is allocated.

They are powers of two, or follow from the slots, so that few programs serve all rollouts.
"""

import dataclasses
import math
from typing import NamedTuple

WIDEST_PAGE = 64  # columns; on a CPU 32 and 128 were slower: more pages, or more columns not in use
PREFILL_TOKENS = 8192  # of one batch of prompts, padding included
NARROWEST = 8  # slots; a narrower batch would cost about as much


def power_of_two(n: int, least: int = 1) -> int:
    """The next one from n on."""
    return max(least, 1 << max(0, n - 1).bit_length())


class Requests(NamedTuple):
    """What is asked of a rollout."""

    prompts: int
    group: int  # samples of each
    longest_prompt: int
    max_new_tokens: int

    def parts(self, ways: int) -> int:
        """Into how many a prompt's samples are split: with fewer prompts than shards, several."""
        return min(self.group, max(1, -(-ways // self.prompts)))


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Of one shard; letters as in `kv_cache`."""

    slots: int  # B
    places: int  # Q, prompts kept at a time
    lanes: int  # G; as many as slots: a lane a slot
    columns: int  # S, of a prompt
    page: int  # W
    pages_a_slot: int  # J
    batch: int  # prompts prefilled together

    def prefill_batch(self, prompt_len: int) -> int:
        return max(1, min(self.batch, PREFILL_TOKENS // prompt_len))

    def narrowed(self, slots: int) -> "Shapes":
        places, lanes = min(self.places, slots), min(self.lanes, slots)
        return dataclasses.replace(self, slots=slots, places=places, lanes=lanes)

    def kv_bytes(self, column_bytes: float) -> int:
        """Of keys and values when every slot is at the length cap."""
        own = self.slots * (1 + self.pages_a_slot) * self.page
        return math.ceil((own + self.places * self.columns) * column_bytes)


def shapes(requests: Requests, slots: int, ways: int) -> Shapes:
    """Of one of `ways` shards; slots: of all of them."""
    slots = -(-slots // ways)
    prompts = -(-requests.prompts * requests.parts(ways) // ways)
    group = -(-requests.group // requests.parts(ways))
    page = power_of_two(min(requests.max_new_tokens, WIDEST_PAGE), 16)
    halves = power_of_two(1 + max(1, slots // (2 * group))) // 2  # of the slots, in prompts
    # Prompts that are being answered, were lengths geometric: each takes the time of one response
    # times the harmonic number of the group. And those of the next prefill.
    busy = math.ceil(slots / group * sum(1 / n for n in range(1, group + 1)))
    return Shapes(
        slots=slots,
        places=min(power_of_two(prompts), busy + halves),
        lanes=min(group, slots),
        columns=power_of_two(requests.longest_prompt, 16),
        page=page,
        pages_a_slot=power_of_two(-(-(requests.max_new_tokens - 1) // page)),
        batch=min(power_of_two(prompts), halves),
    )
