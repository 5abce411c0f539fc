"""The state that the planner keeps for one request."""

from specpilot.engine_adapter.evidence.request_acceptance import START_ACCEPTANCE, Acceptance, Kind, trials
from specpilot.policy.bands import BANDS
from specpilot.policy.names import K_LIMIT


class DraftState:
    """One request: its class and band, its limits, its backlog, and the K of its next draft.

    Class and band:
    - `traffic_class`: the class in the request. `label`: the class under which its evidence is counted; `default` if
      the schedule does not name the class.
    - `acceptance`: its moving estimate. `band`: the band in which `k` was chosen; `acceptance.band` may have changed
      since. `is_unprobed`: no draft of the request had been verified when `k` was chosen; in the asynchronous loop this
      is so for up to three drafts.

    Limits on K:
    - `stated_ceiling`: the largest K that the request asks for. `ceiling`: the smallest of that, K_max and the draft
      length that its remaining tokens allow; set in each step.
    - `min_tokens`: the length before which it may not stop; 0: none.
    - `grammar_allows`: the number of tokens that its grammar left of its next draft; `None` if it left all.

    The next draft:
    - `chosen_k`: K by the table in force (the law, or a fixed K), within `ceiling` and the room of the step. `k`: the
      number of tokens to verify. It is larger than `chosen_k` in a probe, and smaller while the request is postponed or
      the width is cut.
    - `drafted_at`: number of the step in which a draft was last planned for it; `None`: never.
    - `needs_follow_up`: the last draft was a probe and was accepted whole, and the band is not the highest.

    Its positions:
    - `decoding`: its prompt has been read completely. `positions`: its tokens in the step. `is_text_prompt`: these
      tokens belong to a prompt of text alone. `context`: its length when the step was planned.
    - `backlog`: the number of its latest positions that are missing from the draft KV cache. `left_out_rows`: the
      number of steps, since it last caught up, in which the law chose K = 0 for it and K > 0 for others. It may exceed
      `backlog`.
    - `deferred_until`: number of the step by which its deferred prompt goes through the drafter; `None`: there is none.
    """

    __slots__ = (
        "acceptance",
        "backlog",
        "band",
        "ceiling",
        "chosen_k",
        "context",
        "decoding",
        "deferred_until",
        "drafted_at",
        "grammar_allows",
        "is_text_prompt",
        "is_unprobed",
        "k",
        "kind",
        "label",
        "left_out_rows",
        "min_tokens",
        "needs_follow_up",
        "positions",
        "request_id",
        "stated_ceiling",
        "traffic_class",
    )

    def __init__(
        self,
        request_id: str,
        kind: Kind,
        start_acceptance: float = START_ACCEPTANCE,
        ceiling: int = K_LIMIT,
        min_tokens: int = 0,
    ) -> None:
        self.request_id = request_id
        self.kind = kind
        self.ceiling = self.stated_ceiling = ceiling
        self.min_tokens = min_tokens
        self.traffic_class = self.label = kind.traffic_class
        self.acceptance = Acceptance(start_acceptance)
        self.drafted_at: int | None = None
        self.needs_follow_up = False
        self.restart()

    def restart(self) -> None:
        """Reset the state for a prefill, the first one or another one, which fills the draft KV cache anew.

        The acceptance stays.
        """
        self.decoding = False
        self.is_text_prompt = False
        self.positions = 1
        self.context = 0
        self.backlog = self.left_out_rows = 0
        self.deferred_until: int | None = None
        self.k = self.chosen_k = 0
        self.band = self.acceptance.band
        self.is_unprobed = True
        self.grammar_allows: int | None = None

    def note(self, k: int, accepted: int, *, is_probe: bool, is_refused: bool) -> None:
        """Record a verified draft, `accepted` of its `k` tokens accepted. `is_refused`: a grammar cut it after `k`."""
        self.acceptance.note(accepted, trials(k, accepted, is_refused=is_refused))
        self.needs_follow_up = is_probe and accepted == k and not is_refused and self.acceptance.band < BANDS - 1

    def catch_up(self) -> int:
        """Send the whole backlog through the drafter; return its number of rows."""
        rows, self.backlog, self.left_out_rows, self.deferred_until = self.backlog, 0, 0, None
        return rows
