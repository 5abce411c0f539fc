"""The possible results of a pool's tick. The first row that applies is the reason, with the exceptions below the table.

| reason               | holds when                                                   | engines get                   |
|----------------------|--------------------------------------------------------------|-------------------------------|
| `no_drafter`         | no engine of the pool can speculate                          | K = 0                         |
| `off`                | the policy's mode is off                                     | the static K                  |
| `stale`              | no fresh evidence                                            | the table in force            |
| `idle`               | no request has run lately                                    | the table in force            |
| `cost_unknown`       | no step was ever measured                                    | the table in force            |
| `hold_out`           | a window of the control group                                | the static K                  |
| `static_better`      | the pool has fallen back: the law lost                       | the static K                  |
| `engine`             | by the policy each engine chooses K itself                   | guidance                      |
| `gain`               | a table gains the minimum, and may come into force now       | the best table                |
| `bounds`             | the table in force breaks the bounds                         | the same, moved inside        |
| `trial`              | the cost of a depth is unknown, or known of other loads only | one engine tries that depth   |
| `dwell`              | a table gains the minimum, but the last change is too recent | the table in force            |
| `optimal`            | no table gains the minimum                                   | the table in force            |

- The minimum is the policy's at the present load, and 10 % at another.
- A table that breaks the bounds is moved inside also when the pool is stale or idle or its cost unknown; the reason is
  then `bounds`.
- "The table in force" is the law's own: without fresh evidence a window of the control group ends, but a pool that has
  fallen back keeps the static K.
- With the policy's `law` at `engine` the engines get guidance instead of the law's table, also without fresh evidence.
- Rows without traffic are set at every reason, if the evidence is fresh and the cost known.
- The control group does not run a static K that is predicted to break an SLO which the law's table keeps.
- In mode `advise` the engines get nothing and keep their own static K. An older schedule on them is withdrawn once, by
  publishing the static K. The law then goes on from its last advice.
- Under a freeze the reason is `frozen` and the engines get the freeze's schedule.
- Two more reasons are recorded once when a canary ends.
"""

from enum import StrEnum


class Reason(StrEnum):
    """The reason of a decision: a metric label, a field of every decision and a row in the documentation."""

    NO_DRAFTER = "no_drafter"
    OFF = "off"
    STALE = "stale"
    IDLE = "idle"
    COST_UNKNOWN = "cost_unknown"
    HOLD_OUT = "hold_out"
    STATIC_BETTER = "static_better"
    ENGINE = "engine"
    BOUNDS = "bounds"
    GAIN = "gain"
    DWELL = "dwell"
    OPTIMAL = "optimal"
    TRIAL = "trial"
    FROZEN = "frozen"
    CANARY_PROMOTED = "canary_promoted"
    CANARY_ROLLED_BACK = "canary_rolled_back"


MEANING: dict[Reason, str] = {
    Reason.NO_DRAFTER: "no engine of the pool can speculate (k_max is 0)",
    Reason.OFF: "the policy's mode is off: the static K is published",
    Reason.STALE: "no engine of the pool gave fresh evidence: the schedule in force is held",
    Reason.IDLE: "no request is running: the schedule in force is held",
    Reason.COST_UNKNOWN: "no step was measured yet: the schedule in force is held",
    Reason.HOLD_OUT: "a window of the control group: the static K runs, for comparison",
    Reason.STATIC_BETTER: "by the control group the static K is better than the law's choice: it is published",
    Reason.ENGINE: "each engine chooses K for its own batch, by the policy's objective, weights and bounds",
    Reason.BOUNDS: "the schedule in force broke the policy's bounds or pins and was moved inside",
    Reason.GAIN: "changed: the predicted gain reached the minimum at the present load, or 10 % at another",
    Reason.DWELL: "held: a better schedule is known, but the last change is too recent",
    Reason.OPTIMAL: "held: no schedule is known that gains the policy's minimum",
    Reason.TRIAL: "one engine tries a depth whose cost is not known at this load; the others hold",
    Reason.FROZEN: "an operator froze the model: K stays until the freeze is lifted or expires",
    Reason.CANARY_PROMOTED: "the canary's policy became the model's policy",
    Reason.CANARY_ROLLED_BACK: "the canary ended and the present policy stays",
}
