"""Rows that wait for the drafter, by request, in a piece of memory that is taken once.

A row is what the target left at a position for the head to read, and the token at that position. One comes from each
request in each step without drafts, most are never read, and a step of a small model is short. Between two steps the
processor's caches are the model's, so what is done there waits for memory; done for many steps at once, it costs a
fraction. So places are cut out of the memory for some steps ahead where steps leave as many rows; which row is whose is
noted by step, and told apart when somebody asks; and where the target's states stay what they are, they are held and
written together (`compat.states_stay`). Elsewhere they are copied at once, in stream order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from specpilot.engine_adapter.vllm.tuning import ROWS_TOGETHER, STEPS_TOGETHER


@dataclass(slots=True)
class _Run:
    """Steps in a row that left a row for each of the same requests, in the same order; the first row is `begin`."""

    begin: int
    requests: list[str]
    steps: int = 1


class Rows:
    """Room for `size` rows of `width` numbers and a token; `can_hold`: nobody writes over the states given to it."""

    def __init__(self, size: int, width: int, dtype: torch.dtype, device: torch.device, *, can_hold: bool) -> None:
        self.used = 0
        self._states = torch.zeros((size, width), dtype=dtype, device=device)
        self._tokens = torch.zeros(size, dtype=torch.int32, device=device)
        self._by_request: dict[str, list[int]] = {}
        self._latest: list[_Run] = []  # not in `_by_request` yet
        self._count = 0
        self._places: list[tuple[torch.Tensor, torch.Tensor]] = []  # of the next steps' `_count` rows each, last first
        self._held: list[tuple[Sequence[torch.Tensor], torch.Tensor]] = []  # states, and the place that they go to
        self._can_hold = can_hold

    def __len__(self) -> int:
        """Return how many rows wait."""
        return sum(map(len, self.by_request().values()))

    def by_request(self) -> dict[str, list[int]]:
        """Return which rows wait, by request; each request's in the order in which they came."""
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

        Where there is no room, the rows of requests that are not in `batch` are dropped; if that does not do, all.
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
        """Cut out the places of `count` rows, making room if need be; if `count` repeats, for some steps ahead."""
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
        """Move the rows of the requests in `batch` together, and drop the others'; all, if `count` do not fit then.

        Some at a time: what moves is for a moment there twice, and an accelerator's memory is given out by then.
        """
        waiting = self.by_request()
        kept = {request: waiting[request] for request in batch if request in waiting}
        old = sorted(chain.from_iterable(kept.values()))
        if len(old) + count > len(self._tokens):
            self.drop()
            return
        new = {row: place for place, row in enumerate(old)}
        self._by_request = {request: [new[row] for row in rows] for request, rows in kept.items()}
        self.used = len(old)
        for first in range(0, len(old), ROWS_TOGETHER):  # no row moves up, so none is written over that is yet to move
            part = indices(old[first : first + ROWS_TOGETHER], self._states.device)
            for store in (self._states, self._tokens):
                store[first : first + len(part)] = store[part]


def indices(values: list[int] | list[list[int]], device: torch.device) -> torch.Tensor:
    """Return the host's `values` on `device`, to index with."""
    return handed_over(torch.tensor(values, dtype=torch.int64), device)


def handed_over(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the host's `tensor` on `device`. From memory that is not pinned, CUDA may first end what is under way."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
