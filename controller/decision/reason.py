"""The possible results of a pool's tick. The first row that applies is the reason.

| reason          | holds when                                                         | published                     |
|-----------------|--------------------------------------------------------------------|-------------------------------|
| `canary_ended`  | it is the first tick after a canary's end                          | as without a canary           |
| `no_drafter`    | no engine of the pool can speculate                                | nothing                       |
| `frozen`        | an operator froze the model                                        | K as now, or the static K     |
| `off`, `advise` | the policy's mode is so, and no canary runs                        | the static K                  |
| `stale`         | no fresh evidence                                                  | guidance, or the static K     |
| `idle`          | no request has decoded lately                                      | if the pool has fallen back   |
| `fallen_back`   | the pool has fallen back, and not all engines are in a window      | the static K                  |
| `control_group` | the pool has not fallen back, and all engines are in a window      | guidance                      |
| `adaptive`      | otherwise                                                          | guidance                      |

- Each schedule has the guidance of the policy. Where K is fixed, an override in it says so (`policy.schedule`).
- The schedule also names the engines in a window of an experiment (`drawn`), with a guidance of their own. In a window
  of the control group they run the static K and the others choose; in a pool that has fallen back it is the reverse.
  While the pool is `stale` or `idle`, no window of the control group is drawn. If all engines of a pool that has fallen
  back are drawn, the reason is `adaptive`.
- If an engine predicts that the static K would break an SLO that its choice keeps, no window is drawn and the pool does
  not fall back.
"""

from enum import StrEnum


class Reason(StrEnum):
    """The reason of a decision: a metric label, a field of every decision and a row in the documentation."""

    NO_DRAFTER = "no_drafter"
    OFF = "off"
    ADVISE = "advise"
    FROZEN = "frozen"
    STALE = "stale"
    IDLE = "idle"
    CONTROL_GROUP = "control_group"
    FALLEN_BACK = "fallen_back"
    ADAPTIVE = "adaptive"
    CANARY_ENDED = "canary_ended"


MEANING: dict[Reason, str] = {
    Reason.NO_DRAFTER: "no engine of the pool can speculate (k_max is 0)",
    Reason.OFF: "the policy's mode is off: the static K is in force",
    Reason.ADVISE: "the policy's mode is advise: the static K is in force, for comparison with the engines' choice",
    Reason.FROZEN: "an operator froze the model: K stays until the freeze is lifted or expires",
    Reason.STALE: "no engine of the pool gave fresh evidence: the engines go on as before",
    Reason.IDLE: "no request has decoded lately",
    Reason.CONTROL_GROUP: "a window of the control group: the static K runs, for comparison",
    Reason.FALLEN_BACK: "by the control group the static K is better than the engines' choice: it is in force",
    Reason.ADAPTIVE: "each engine chooses K for its own batch, by the policy's objective, weights and bounds",
    Reason.CANARY_ENDED: "the canary ended; its outcome is in the evidence",
}
