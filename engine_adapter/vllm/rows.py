"""Rows that wait for the drafter, by request, in memory that is allocated once.

A row has the target's states that the head reads at a position, and the token at that position. Each step without
drafts adds one row for each request. Most rows are never read, and a step of a small model is short. Between two steps
the processor's caches hold the model, so work between steps waits for memory; the work of many steps done together
takes a fraction of the time:

- places in the memory are reserved for some steps ahead, while steps leave the same number of rows;
- the requests of the rows are noted by step, and assigned when the rows are read;
- if the target's states stay unchanged (`engine_facts.states_stay`), rows are held and written together. Otherwise they
  are copied at once, in stream order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

SPARE_ROWS = 8
"""One further row is allocated for so many rows of the bound: with fewer further rows, rows move more often."""

POSITIONS_PER_PASS = 4096
"""Positions of a step that the drafter reads in one pass without drafting from them. The memory of a pass is not in
vLLM's measurement: 96 MiB for a hidden size of 4,096 in bfloat16. A smaller number means more passes for a long
prompt."""

STEPS_TOGETHER = 32
"""Largest number of steps for which places are reserved together."""

ROWS_TOGETHER = 1024
"""Largest number of rows that are held or moved together; a single step may have more. They need memory beyond the
allocated one: 24 MiB for a hidden size of 4,096 in bfloat16."""


@dataclass(slots=True)
class _Run:
    """Consecutive steps that each left a row for the same requests, in the same order; the first row is `begin`."""

    begin: int
    requests: list[str]
    steps: int = 1


class Rows:
    """Memory for `size` rows of `width` numbers and a token. `can_hold`: the states passed to it stay unchanged."""

    def __init__(self, size: int, width: int, dtype: torch.dtype, device: torch.device, *, can_hold: bool) -> None:
        self.used = 0
        self._states = torch.zeros((size, width), dtype=dtype, device=device)
        self._tokens = torch.zeros(size, dtype=torch.int32, device=device)
        self._by_request: dict[str, list[int]] = {}
        self._latest: list[_Run] = []  # not in `_by_request` yet
        self._count = 0
        self._places: list[tuple[torch.Tensor, torch.Tensor]] = []  # for the next steps, `_count` rows each, last first
        self._held: list[tuple[Sequence[torch.Tensor], torch.Tensor]] = []  # states, and their place
        self._can_hold = can_hold

    def __len__(self) -> int:
        """Return the number of rows that wait."""
        return sum(map(len, self.by_request().values()))

    def by_request(self) -> dict[str, list[int]]:
        """Return the rows that wait, by request, in the order of their positions."""
        for run in self._latest:
            count = len(run.requests)
            end = run.begin + run.steps * count
            for first, request in enumerate(run.requests, run.begin):
                self._by_request.setdefault(request, []).extend(range(first, end, count))
        self._latest.clear()
        return self._by_request

    def tokens(self) -> torch.Tensor:
        """Return the tokens of all rows in use: [used]."""
        return self._tokens[: self.used]

    def states(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the states of `rows` [rows]: [rows, width]."""
        self._write()
        return self._states[rows]

    def add(
        self, requests: Sequence[str], states: Sequence[torch.Tensor], tokens: torch.Tensor, batch: Sequence[str]
    ) -> None:
        """Append a row for each of `requests`: the `states` of each layer [requests, ...], and the `tokens` [requests].

        Without room the rows of requests that are not in `batch` are dropped; if that does not suffice, all rows.
        """
        count = len(requests)
        if count != self._count or not self._places:
            self._cut(count, batch)
        place, place_of_tokens = self._places.pop()
        place_of_tokens.copy_(tokens)
        self._held.append((states, place))
        if not self._can_hold:
            self._write()
        if self._latest and self._latest[-1].requests == requests:
            self._latest[-1].steps += 1
        else:
            self._latest.append(_Run(self.used, list(requests)))
        self.used += count

    def forget(self, requests: Iterable[str]) -> None:
        """Drop the rows of `requests`."""
        rows = self.by_request()
        for request in requests:
            rows.pop(request, None)
        if not rows:
            self.drop()

    def drop(self) -> None:
        """Drop all rows."""
        self.used = 0
        self._by_request.clear()
        self._latest.clear()
        self._places.clear()
        self._held.clear()

    def _write(self) -> None:
        for states, place in self._held:
            torch.cat(states, dim=-1, out=place)
        self._held.clear()

    def _cut(self, count: int, batch: Sequence[str]) -> None:
        """Reserve places for `count` rows, making room if necessary; if `count` repeats, for some steps ahead."""
        self._write()
        if self.used + count > len(self._tokens):
            self._make_room(count, batch)
        steps = 1
        if count == self._count:
            steps = min(STEPS_TOGETHER, max(1, ROWS_TOGETHER // count), (len(self._tokens) - self.used) // count)
        ahead = slice(self.used, self.used + steps * count)
        self._count = count
        self._places = [*zip(self._states[ahead].split(count), self._tokens[ahead].split(count), strict=True)][::-1]

    def _make_room(self, count: int, batch: Sequence[str]) -> None:
        """Move the rows of the requests in `batch` together, and drop the others; drop all if `count` more do not fit.

        Rows move in parts, because they exist twice while they move, and all memory of an accelerator is allocated by
        then.
        """
        waiting = self.by_request()
        batch_rows = {request: waiting[request] for request in batch if request in waiting}
        old = sorted(chain.from_iterable(batch_rows.values()))
        if len(old) + count > len(self._tokens):
            self.drop()
            return
        new = {row: place for place, row in enumerate(old)}
        self._by_request = {request: [new[row] for row in rows] for request, rows in batch_rows.items()}
        self.used = len(old)
        for first in range(0, len(old), ROWS_TOGETHER):  # no row moves up, so none is overwritten before it moves
            part = indices(old[first : first + ROWS_TOGETHER], self._states.device)
            for store in (self._states, self._tokens):
                store[first : first + len(part)] = store[part]


def indices(values: list[int] | list[list[int]], device: torch.device) -> torch.Tensor:
    """Return the host's `values` on `device`, to index with."""
    return handed_over(torch.tensor(values, dtype=torch.int64), device)


def handed_over(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the host's `tensor` on `device`. Without pinned memory, CUDA may first wait for work under way."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
