"""What adaptive verification verified of each request travels with the step's output."""

from types import SimpleNamespace
from typing import Any

from specpilot.engine_adapter.vllm.verified_tokens import of_output, report


def outputs(*, is_adaptive: bool, copies: list[Any]) -> Any:
    """A class like vLLM's `AsyncOutput`, with what is copied noted in `copies`."""

    class Outputs:
        def __init__(
            self, model_runner_output: Any, sampler_output: Any, num_sampled_tokens: Any, main_stream: Any,
            copy_stream: Any,
        ) -> None:  # fmt: skip
            copies.append("vLLM's own")
            self.output = model_runner_output

        def get_output(self) -> Any:
            return self.output

    def copied(tensor: Any, main_stream: Any, copy_stream: Any) -> Any:
        copies.append((main_stream, copy_stream))
        return tensor

    report(Outputs, lambda: is_adaptive, copied)
    return Outputs


def step() -> tuple[Any, Any]:
    tokens = [[5, 6, 7], [5], [], [8]]  # the third request's prompt goes on
    output = SimpleNamespace(req_ids=["all", "none", "prompt", "rejected"], sampled_token_ids=tokens)
    return output, SimpleNamespace(num_rejected=[0, 0, 0, 2])


def test_what_was_verified_is_what_was_accepted_and_what_was_rejected() -> None:
    copies: list[Any] = []
    kind = outputs(is_adaptive=True, copies=copies)
    output, sampled = step()
    made = kind(output, sampled, None, main_stream="main", copy_stream="copy")
    assert copies == [("main", "copy"), "vLLM's own"]  # vLLM waits for its own copies, which come after
    assert of_output(made.get_output()) == {"all": 2, "none": 0, "prompt": 0, "rejected": 2}


def test_an_engine_that_verifies_all_reports_nothing() -> None:
    copies: list[Any] = []
    output, sampled = step()
    made = outputs(is_adaptive=False, copies=copies)(output, sampled, None, "main", "copy")
    assert copies == ["vLLM's own"]
    assert of_output(made.get_output()) is None
