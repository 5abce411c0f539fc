"""Why the law chose the K of each group, in words."""

from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.policy.schedule import ClassGuidance, Guidance, Objective
from tests.support.measured_law import HIGH, K_MAX, LOW, STATIC, follow, measured, request


def test_it_says_why_k_is_what_it_is() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    assert law.described()["groups"] == []
    follow(law, {"batch": ClassGuidance(weight=1.0), "chat": ClassGuidance(k_max=4)})
    law.k_of([request(HIGH, "chat")] * 3 + [request(LOW)] * 4 + [request(LOW, "batch", drafts=0)])
    groups = law.described()["groups"]
    assert [(item["classes"], item["band"], item["unprobed"], item["decodes"], item["k"]) for item in groups] == [
        (["default", "batch"], LOW, False, 4, 0),
        (["default", "batch"], LOW, True, 1, 0),
        (["chat"], HIGH, False, 3, 4),
    ]
    assert [item["position"] for item in groups[0]["positions"]] == [1]
    assert groups[0]["positions"][0]["worth_tokens"] < groups[0]["positions"][0]["cost_tokens"]
    assert groups[2]["why"].startswith("position 4 of band 7 is worth 0.")
    assert groups[2]["positions"][1]["worth_tokens"] > groups[2]["positions"][1]["cost_tokens"]
    assert groups[2]["why"].endswith("; its class allows K from 0 to 4")
    assert groups[0]["why"].endswith(f"costs {groups[0]['positions'][0]['cost_tokens']:.2f}")


def test_it_says_by_what_k_is_chosen_where_that_is_not_the_worth_of_positions_alone() -> None:
    batch = [request(HIGH)] * 4

    def last(law: EngineLaw, guidance: Guidance) -> str:
        law.follow(guidance)
        law.k_of(batch)
        return str(law.groups()[0]["why"]).rsplit("; ", maxsplit=1)[-1]

    law, bounds = measured(EngineLaw(K_MAX, STATIC, 32)), {"default": ClassGuidance(tpot_bound_ms=1.0)}
    assert last(law, Guidance(Objective.LATENCY)) == "chosen for the least mean time per token"
    assert last(law, Guidance(classes=bounds)) == "chosen for latency goals too"
    assert last(law, Guidance(classes={"default": ClassGuidance(k_min=2, k_max=2)})) == "its class allows K from 2 to 2"
    one_k = measured(EngineLaw(K_MAX, STATIC, 32, Graphs("FULL", need_one_k=True)))
    assert last(one_k, Guidance()) == "all decodes of a step get one K"
    law.hold(is_held=True)
    assert law.groups()[0]["why"].endswith("; kept by a freeze")


def test_between_new_guidance_and_the_next_choice_no_group_is_explained() -> None:
    """The groups of the latest step may belong to other requirements than the choice."""
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    law.k_of([request(HIGH)])
    latest = law._latest
    follow(law, {"chat": ClassGuidance(2.0)})
    law.k_of([request(HIGH)])
    law._latest = latest
    described = law.described()
    assert described is not None
    assert described["groups"] == []
