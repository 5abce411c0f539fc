from controller.conduct import Conduct
from controller.facts import Facts, Verdict
from controller.guard import Reason
from policy.canary import Arm, Canary, Experiment
from policy.types import Policy


def test_what_is_remembered_of_canaries_does_not_grow_with_their_number() -> None:
    conduct = Conduct()
    facts = Facts("m", "p", Policy("m"), 7, 3, 64, None, Arm.PRESENT)
    verdict = Verdict(Reason.OPTIMAL, {}, {}, 0.0, None, {})
    for number in range(100):  # each ends unseen, while the pool has no engines
        conduct.told(Experiment(1, str(number), Canary(Policy("m")), 0, 0.0), facts, verdict)
    assert len(conduct._seen_running) == 1
