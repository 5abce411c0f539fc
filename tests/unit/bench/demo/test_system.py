"""The sum of the engines' pages of metrics."""

from specpilot.bench.demo.system import reading


def page(drafts: dict[tuple[int, int], int]) -> str:
    rows = [
        "# TYPE vllm:generation_tokens counter",
        'vllm:generation_tokens_total{model_name="m"} 70',
        "# TYPE specpilot_engine_drafts counter",
    ]
    rows += [
        f'specpilot_engine_drafts_total{{model_name="m",traffic_class="default",band="{band}",k="{drafted}"}} {count}'
        for (band, drafted), count in drafts.items()
    ]
    rows.append("# TYPE specpilot_engine_decode_tokens counter")
    rows += [
        f'specpilot_engine_decode_tokens_total{{model_name="m",traffic_class="default",band="{band}"}} 10'
        for band in (2, 6)
    ]
    return "\n".join(rows) + "\n"


def test_counters_are_summed_over_bands_and_engines() -> None:
    found = reading([page({(2, 1): 20, (6, 7): 10}), page({(6, 7): 10})], 5.0)
    assert (found.at, found.tokens) == (5.0, 140)
    assert dict(found.drafts) == {"default": 40}
    assert dict(found.verified_tokens) == {"default": 160}
    assert dict(found.delivered_tokens) == {"default": 40}
