"""When the device was done with a step: read at the step's outcome, without a wait."""

from typing import Any

import pytest

from specpilot.engine_adapter.vllm.device_time import mark_steps, of_output


class Moment:
    """A mark that passes when the test says so."""

    now = 0.0

    def __init__(self) -> None:
        self.at = Moment.now
        self.has_passed = True

    def since(self, before: "Moment") -> float | None:
        return self.at - before.at if self.has_passed and before.has_passed else None


def outputs() -> Any:
    """A class like vLLM's, whose objects say how long the device took."""

    class Outputs:
        def __init__(self, output: Any) -> None:
            self.output = output

        def get_output(self) -> Any:
            return self.output

    mark_steps(Outputs, Moment)
    return Outputs


class Output:
    """As much of vLLM's `ModelRunnerOutput` as the adapter needs."""


def launched(kind: Any, at: float) -> Any:
    Moment.now = at
    return kind(Output())


def test_each_step_has_the_time_since_the_end_of_the_step_before_whenever_it_is_read() -> None:
    kind = outputs()
    first, second, third = (launched(kind, at) for at in (1.0, 3.0, 3.5))
    assert [of_output(step.get_output()) for step in (first, second, third)] == [None, 2.0, 0.5]


def test_what_has_not_passed_is_not_waited_for() -> None:
    kind = outputs()
    launched(kind, 1.0)
    late = launched(kind, 2.0)
    late._specpilot_mark[0].has_passed = False
    assert of_output(late.get_output()) is None


@pytest.mark.parametrize("output", [None, object()])
def test_an_output_without_the_attribute_has_no_time(output: Any) -> None:
    assert of_output(output) is None
