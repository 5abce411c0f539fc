from specpilot.controller.experiments.runner import Runner
from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.reason import Reason
from specpilot.policy.canary import Arm, Canary, Experiment
from specpilot.policy.model_policy import Policy


def test_what_is_remembered_of_canaries_does_not_grow_with_their_number() -> None:
    runner = Runner()
    context = PoolContext("m", "p", Policy("m"), 7, 3, 64, None, Arm.PRESENT)
    result = TickResult(Reason.ADAPTIVE, {}, {}, 0.0, None, {})
    for number in range(100):  # each ends unseen, while the pool has no engines
        runner.reported(Experiment(1, str(number), Canary(Policy("m")), 0, 0.0), context, result)
    assert len(runner._seen_running) == 1
