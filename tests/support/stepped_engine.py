"""Steps as vLLM schedules them, for the tests of `Steps`; and what they counted, added up."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from specpilot.engine_adapter.evidence.meter import Evidence, Meter, StepKind
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.engine_adapter.plan.speculation_control import KTable
from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.plan.steps import Steps
from tests.support.planning import K_MAX
from tests.support.probe_prices import DEMO


class Engine:
    """Hands `Steps` what vLLM's scheduler would, step by step."""

    def __init__(self, in_force: KTable, longest_to_draft: int = 1000, planner: Planner | None = None) -> None:
        self.meter = Meter()
        self.table = in_force
        self.steps = Steps(
            planner or Planner(K_MAX, backlog_rows=4096, prices=DEMO), self.meter, in_force, longest_to_draft
        )
        self.requests: dict[str, Any] = {}
        self.plan = StepPlan(0)

    def begin(
        self,
        now: float = 0.0,
        drafted: Mapping[str, int] | None = None,
        finished: Collection[str] = (),
        prefilling: Collection[str] = (),
        continued: Collection[str] = (),
        running: Sequence[Any] = (),
        **tokens: int,
    ) -> Any:
        """Schedule `tokens` of each request, after `drafted` of them; `prefilling` have more of their prompt to go.

        `continued` are sessions that were given more input, `running` all that run.
        """
        output = SimpleNamespace(
            num_scheduled_tokens=tokens,
            scheduled_spec_decode_tokens={name: [-1] * count for name, count in (drafted or {}).items()},
            finished_req_ids=set(finished),
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name) for name in tokens if name in continued or name not in self.requests
            ],
        )
        for name, count in tokens.items():
            request = self.requests.setdefault(name, named(name))
            request.num_computed_tokens += count
            request.is_prefill_chunk = name in prefilling
        self.plan = self.steps.begin(output, self.requests, self.table, now, running)
        return output

    def end(self, output: Any, now: float = 0.0, *, goes_on: bool = True, **delivered: int) -> None:
        items = [
            SimpleNamespace(request_id=name, new_token_ids=[0] * count) for name, count in delivered.items() if count
        ]
        self.steps.end(output, {0: SimpleNamespace(outputs=items)}, now, goes_on=goes_on)

    def verify(self, name: str, drafted: int, accepted: int, **others: int) -> None:
        """Do a step that verifies a draft of a request, beside tokens of `others`."""
        output = self.begin(drafted={name: drafted}, **{name: 1 + drafted}, **others)
        self.steps.note_draft(name, drafted, accepted, invalid=0)
        self.end(output, **{name: 1 + accepted}, **others)

    def prefill(self, *names: str) -> None:
        """Process the requests' prompts, and drop the counts of that."""
        self.end(self.begin(**dict.fromkeys(names, 9)), **dict.fromkeys(names, 1))
        self.drop()

    def drop(self) -> None:
        """Drop all counts, and the steps one by one."""
        self.meter.take_evidence()
        self.meter.take_steps()


def named(name: str, min_tokens: int = 0, **extra: object) -> Any:
    """Return a request whose class is the part of its name before the underscore, with further arguments."""
    traffic_class, _, rest = name.partition("_")
    extra |= {"traffic_class": traffic_class} if rest else {}
    return SimpleNamespace(
        request_id=name,
        num_computed_tokens=0,
        num_output_placeholders=0,
        max_tokens=10**6,
        num_output_tokens=0,
        sampling_params=SimpleNamespace(
            extra_args=extra or None, temperature=0.0, min_tokens=min_tokens, all_stop_token_ids={2}
        ),
        use_structured_output=False,
        mm_features=[],
    )


def prefill_steps(evidence: Evidence) -> int:
    found = steps_by_kind(evidence)
    return found.get(StepKind.PREFILL, 0) + found.get(StepKind.PROMPT, 0)


def steps_by_kind(evidence: Evidence) -> dict[StepKind, int]:
    return {kind: sums.steps for kind, sums in evidence.steps.items()}


def drafts(evidence: Evidence) -> dict[tuple[str, int], int]:
    """By class and K, whatever the band."""
    found: Counter[tuple[str, int]] = Counter()
    for (name, _, k), count in evidence.drafts.items():
        found[name, k] += count
    return dict(+found)


def tokens(evidence: Evidence) -> dict[str, int]:
    """By class, whatever the band."""
    found: Counter[str] = Counter()
    for (name, _), count in evidence.tokens.items():
        found[name] += count
    return dict(found)


def by_position(counts: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """By position, whatever the band."""
    found: Counter[int] = Counter()
    for (_, position), count in counts.items():
        found[position] += count
    return dict(found)
