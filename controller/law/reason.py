"""How a tick of a pool may end: one table. The first row that fits is the reason, but for what is said below it.

| reason               | holds when                                                   | engines get                   |
|----------------------|--------------------------------------------------------------|-------------------------------|
| `no_drafter`         | no engine of the pool can speculate                          | K = 0                         |
| `off`                | the policy's mode is off                                     | the static K                  |
| `stale`              | no fresh evidence                                            | what was in force             |
| `idle`               | nothing has run lately                                       | what was in force             |
| `cost_unknown`       | no step was ever measured                                    | what was in force             |
| `hold_out`           | a window of the hold-out                                     | the static K                  |
| `static_better`      | the hold-out says that the law loses                         | the static K                  |
| `gain`               | a table gains the minimum, and may come into force now       | the best table                |
| `bounds`             | what was in force breaks the bounds                          | the same, moved inside        |
| `trial`              | the cost of a depth is unknown, or known of other loads only | one engine tries that depth   |
| `dwell`              | a table gains the minimum, but the last change is too recent | what was in force             |
| `optimal`            | no table gains the minimum                                   | what was in force             |

The minimum is the policy's at the present load, and 10 % at another. A table that breaks the bounds is moved inside
also where it is stale, idle or its cost is unknown; the reason is then `bounds`. "What was in force" is the law's own
table: without fresh evidence a window of the hold-out ends, but a pool that stepped back keeps the static K. Rows
without traffic are set whatever the reason where the evidence is fresh and the cost known. No static K that is
predicted to break an SLO which the law's table keeps comes into force by the hold-out.
In mode `advise` the engines get nothing and stay on their own static K; a schedule that they hold from before is
withdrawn once, by the static K. The law then goes on from what it advised last.
While an operator has frozen the model, the reason is `frozen` and the engines get what the freeze says. Two more
reasons are recorded once when a canary ends.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why the schedule is what it is: a metric label, a field of every decision and a row in the documentation."""

    NO_DRAFTER = "no_drafter"
    OFF = "off"
    STALE = "stale"
    IDLE = "idle"
    COST_UNKNOWN = "cost_unknown"
    HOLD_OUT = "hold_out"
    STATIC_BETTER = "static_better"
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
    Reason.IDLE: "nothing is running: the schedule in force is held",
    Reason.COST_UNKNOWN: "no step was measured yet: the schedule in force is held",
    Reason.HOLD_OUT: "a window of the hold-out: the static K runs, to be compared with",
    Reason.STATIC_BETTER: "the hold-out says that the static K is better than what the law chose: it is published",
    Reason.BOUNDS: "the schedule in force broke the policy's bounds or pins and was moved inside",
    Reason.GAIN: "changed: the predicted gain reached the minimum at the present load, or 10 % at another",
    Reason.DWELL: "held: a better schedule is known, but the last change is too recent",
    Reason.OPTIMAL: "held: no schedule is known that gains the policy's minimum",
    Reason.TRIAL: "one engine tries a depth whose cost is not known at this load; the others hold",
    Reason.FROZEN: "an operator froze the model: K stays until the freeze is lifted or its time is over",
    Reason.CANARY_PROMOTED: "the canary's policy became the model's policy",
    Reason.CANARY_ROLLED_BACK: "the canary ended and the present policy stays",
}
