"""vLLM's counters of speculation as they stand in an exposition."""

from prometheus_client import CollectorRegistry, Counter, generate_latest

from specpilot.gateway.wire.spec_decode import SERIES_MAX, key_of, parse, parts_of


def exposition(model: str) -> bytes:
    """What vLLM's loggers make of two engine cores in one server."""
    registry = CollectorRegistry()
    labels = ("model_name", "engine")
    drafts = Counter("vllm:spec_decode_num_drafts", "Number of spec decoding drafts.", labels, registry=registry)
    positions = Counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted.", (*labels, "position"), registry=registry
    )
    Counter("vllm:spec_decode_seconds", "Another counter.", labels, registry=registry).labels(model, "0").inc(9)
    for core in ("0", "1"):
        drafts.labels(model, core).inc(3)
        positions.labels(model, core, "0").inc(2)
    return generate_latest(registry)


def test_ranks_add_up_and_other_series_are_left_out() -> None:
    for model in ("demo", 'a "quoted" \\ name|of, {all} kinds\n'):
        found = parse(exposition(model))
        assert found == {
            key_of("num_drafts", "", model): 6.0,
            key_of("num_accepted_tokens_per_pos", "0", model): 4.0,
        }
        assert {parts_of(key)[2] for key in found} == {model}


def test_what_is_no_count_is_left_out() -> None:
    name = b"vllm:spec_decode_num_drafts_total"
    for line in (
        name + b'{model_name="m"} NaN',
        name + b'{model_name="m"} +Inf',
        name + b'{model_name="m"} -1',
        name + b'{model_name="m"} many',
        name + b'{engine="0"} 1',
        name + b'{model_name="m",position="1"} 1',
        b"# " + name + b'{model_name="m"} 1',
        b'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m"} 1',
        b'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="x"} 1',
        b'vllm:spec_decode_num_drafts{model_name="m"} 1',
        b"\xff" * 100,
    ):
        assert parse(line + b"\n") == {}, line
    assert parse(name + b'{model_name="m"} 1.5e3\r\n') == {key_of("num_drafts", "", "m"): 1500.0}


def test_series_are_bounded() -> None:
    lines = (b'vllm:spec_decode_num_drafts_total{model_name="%d"} 1\n' % index for index in range(2 * SERIES_MAX))
    assert len(parse(b"".join(lines))) == SERIES_MAX
