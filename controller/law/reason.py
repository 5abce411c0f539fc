"""The possible results of a pool's tick. The first row that applies is the reason.

The column *published* is for mode `act`, and for `off` in its own row.

| reason          | holds when                                                         | published            |
|-----------------|--------------------------------------------------------------------|----------------------|
| `frozen`        | an operator froze the model                                        | the freeze's rows    |
| `canary_ended`  | it is the first tick after a canary's end                          | as without a canary  |
| `no_drafter`    | no engine of the pool can speculate                                | K = 0                |
| `off`           | the policy's mode is off                                           | the static K         |
| `stale`         | no fresh evidence                                                  | guidance             |
| `idle`          | no request has decoded lately                                      | guidance             |
| `unpriced`      | no engine that runs requests has fitted prices yet                 | guidance             |
| `static_better` | the pool has fallen back, and not all engines are in a window      | the static K         |
| `control_group` | the pool has not fallen back, and all engines are in a window      | guidance             |
| `adaptive`      | otherwise                                                          | guidance             |

- With guidance each engine chooses K for its own batch. An engine whose law has too little evidence, such as one
  without fitted prices, runs the static K, which the same schedule contains.
- In a pool that has fallen back the static K is published as rows, also while it is `stale`, `idle` or `unpriced`, and
  the guidance is for the drawn engines. If all its engines are drawn, the reason is `adaptive`.
- The schedule also names the engines in a window of an experiment (`drawn`), with a guidance of their own. In a window
  of the control group they run the static K and the others choose; in a pool that has fallen back it is the reverse.
  While the pool is `stale`, `idle` or `unpriced`, no window of the control group is drawn.
- If the static K is predicted to break an SLO that the engines' choice keeps, no window is drawn and the pool does not
  fall back.
- During a freeze of the current K, guidance is published until the controller has an estimate of K.
- In mode `advise` the reason is `adaptive` in place of the last three, and nothing is published: engines keep their
  own K. If they hold a schedule with another K, the static K is published to replace it.
- While a canary runs, guidance is published in every mode; it pins the static K of a policy with mode `off` or
  `advise`. Then `stale`, `idle` and `unpriced` come before `off`.
"""

from enum import StrEnum

from specpilot.policy.model_policy import Mode


class Reason(StrEnum):
    """The reason of a decision: a metric label, a field of every decision and a row in the documentation."""

    NO_DRAFTER = "no_drafter"
    OFF = "off"
    FROZEN = "frozen"
    STALE = "stale"
    IDLE = "idle"
    UNPRICED = "unpriced"
    CONTROL_GROUP = "control_group"
    STATIC_BETTER = "static_better"
    ADAPTIVE = "adaptive"
    CANARY_ENDED = "canary_ended"


MEANING: dict[Reason, str] = {
    Reason.NO_DRAFTER: "no engine of the pool can speculate (k_max is 0)",
    Reason.OFF: "the policy's mode is off: the static K is published",
    Reason.FROZEN: "an operator froze the model: engines follow fixed rows until the freeze is lifted or expires",
    Reason.STALE: "no engine of the pool gave fresh evidence: the engines go on as before",
    Reason.IDLE: "no request has decoded lately",
    Reason.UNPRICED: "no busy engine has measured enough steps yet: until then engines run the static K",
    Reason.CONTROL_GROUP: "a window of the control group: the static K runs, for comparison",
    Reason.STATIC_BETTER: "by the control group the static K is better than the engines' choice: it is published",
    Reason.ADAPTIVE: "each engine chooses K for its own batch, by the policy's objective, weights and bounds",
    Reason.CANARY_ENDED: "the canary ended; its outcome is in the evidence",
}

_ADVISED = (
    "mode advise: the K that engines would choose is estimated and shown; they run the static K, "
    "or with --adapt choose by themselves"
)


def meaning_of(reason: Reason, mode: Mode) -> str:
    """Return the meaning of `reason` in `mode`, as a sentence for a person."""
    return _ADVISED if reason is Reason.ADAPTIVE and mode is Mode.ADVISE else MEANING[reason]
