import json
import re
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.policy.api_key import ApiKey
from specpilot.policy.codec import decode, encode, from_plain, to_plain
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.model_policy import ClassPolicy, MatchRule, Mode, Policy, VersionedPolicy
from specpilot.policy.records import Decision
from specpilot.policy.schedule import Cause, ClassGuidance, FleetAcceptance, Guidance, Objective, Override, Schedule


def numbers_of(kind: Any) -> list[str]:
    return [item.name for item in fields(kind) if re.search(r"\b(int|float)\b", str(item.type))]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN"])
@pytest.mark.parametrize(
    ("field", "text"),
    [
        *((name, f'{{"model": "m", "{name}": NUMBER}}') for name in numbers_of(Policy)),
        *(
            (name, f'{{"model": "m", "classes": {{"code": {{"{name}": NUMBER}}}}}}')
            for name in [*numbers_of(ClassPolicy), "itl_slo_ms"]
        ),
        *(
            (name, f'{{"model": "m", "match": [{{"traffic_class": "default", "{name}": NUMBER}}]}}')
            for name in numbers_of(MatchRule)
        ),
    ],
)
def test_no_number_of_a_policy_is_infinite_or_none_at_all(field: str, text: str, number: str) -> None:
    """As an operator sends it: JSON's own numbers reach beyond what a float holds."""
    plain = decode(dict, text.replace("NUMBER", number))
    with pytest.raises(InvalidDocumentError, match=field):
        from_plain(Policy, plain)


OVERRIDES = st.none() | st.builds(
    Override, st.none() | st.integers(0, 64), st.sampled_from(Cause), st.none() | st.floats(0, 1e10)
)
SCHEDULES = st.builds(
    lambda version, probe, override, static_k, drawn_until: Schedule(
        "org/model-1",
        "h200",
        version,
        1_790_000_000.25,
        Guidance(probe_ratio=probe, static_k=static_k, override=override),
        drawn=("one",),
        drawn_until=drawn_until,
        drawn_guidance=Guidance(),
    ),
    st.integers(0, 2**53),
    st.floats(0, 1),
    OVERRIDES,
    st.none() | st.integers(0, 64),
    st.none() | st.floats(0, 1e10),
)


@given(SCHEDULES)
def test_a_schedule_survives_the_round_trip(schedule: Schedule) -> None:
    assert decode(Schedule, encode(schedule)) == schedule
    assert from_plain(Schedule, to_plain(schedule)) == schedule


@pytest.mark.parametrize(
    "value",
    [
        VersionedPolicy(
            3,
            1.5,
            Policy(
                "m",
                mode=Mode.ADVISE,
                static_k=2,
                classes={"code": ClassPolicy(pin=3, itl_slo_ms=20.0)},
                match=(MatchRule("code", path="/v1/completions", has_tools=True),),
            ),
        ),
        ApiKey("id", "00" * 32, "code", ("code", "chat")),
        Decision(1.0, "m", "p", Mode.ACT, "improved", True, 4, None, {"n": 3, "S": [0.5, 0.25]}),
    ],
)
def test_other_documents_survive_it_too(value: object) -> None:
    assert decode(type(value), encode(value)) == value


def faults(kind: type[object], text: str) -> dict[str, str]:
    with pytest.raises(InvalidDocumentError) as caught:
        decode(kind, text)
    return {fault.field: fault.problem for fault in caught.value.faults}


def test_every_fault_of_a_policy_is_reported_with_its_field() -> None:
    with pytest.raises(InvalidDocumentError) as raised:
        from_plain(
            Policy,
            {
                "model": "m",
                "mode": "fast",
                "classes": {"code": {"k_min": 5, "k_max": 1}, "chat": {"pin": 99}, "No": {}},
                "colour": 1,
            },
        )
    found = {fault.field: fault.problem for fault in raised.value.faults}
    assert set(found) == {"mode", "classes.code", "classes.chat.pin", "classes.No", "colour"}
    assert found["classes.code"] == "k_min 5 is above k_max 1"
    assert found["classes.chat.pin"] == "must be at most 64"


@pytest.mark.parametrize(
    ("bounds", "said"),
    [({"k_max": 2}, "above the class's own k_max 2"), ({"k_min": 4}, "below the class's own k_min 4")],
)
def test_a_pin_outside_the_bounds_of_its_own_class_is_a_fault(bounds: dict[str, int], said: str) -> None:
    assert from_plain(Policy, {"model": "m", "k_max": 2, "classes": {"code": {"pin": 3}}}).of_class("code").pin == 3
    with pytest.raises(InvalidDocumentError, match=f"pin 3 is {said}"):
        from_plain(Policy, {"model": "m", "classes": {"code": {"pin": 3, **bounds}}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", {"model": "is missing; it must be given"}),
        ('{"model": 5}', {"model": "must be text"}),
        ('{"model": "m", "k_max": "x", "k_min": 1.5}', dict.fromkeys(("k_min", "k_max"), "must be a whole number")),
        ('{"model": "m", "probe_ratio": "x"}', {"probe_ratio": "must be a number"}),
        ('{"model": "m", "limit_running": "perhaps"}', {"limit_running": "must be true or false"}),
        ('{"model": "m", "classes": [], "match": 1}', {"classes": "must be an object", "match": "must be a list"}),
        ('{"model": "m", "slo": 5}', {"slo": "must be an object"}),
        ('{"model": "m", "mode": "fast"}', {"mode": "must be 'off', 'advise' or 'act'"}),
        ('{"model": ""}', {"model": "'' must be 1 to 256 printable characters without a space at its ends"}),
        *((text, {"": "must be an object"}) for text in ("[]", "null", "7", '"x"')),
        ("{", {"": "not JSON: EOF while parsing an object at line 1 column 1"}),
    ],
)
def test_faults_are_in_plain_words(text: str, said: dict[str, str]) -> None:
    assert faults(Policy, text) == said


@given(st.text())
def test_any_text_at_all_is_a_fault_or_a_policy(text: str) -> None:
    try:
        decode(Policy, text)
    except InvalidDocumentError as error:
        assert error.faults


def test_what_a_newer_version_added_is_ignored_on_the_wire_and_refused_from_people() -> None:
    schedule = Schedule("m", "p", 1, 0.0, Guidance())
    newer = {**json.loads(encode(schedule)), "colour": "red"}
    assert decode(Schedule, json.dumps(newer)) == schedule
    with pytest.raises(InvalidDocumentError):
        from_plain(Schedule, newer)
    with pytest.raises(InvalidDocumentError):
        decode(Schedule, json.dumps({**newer, "version": -1}))


def test_what_an_older_version_stored_and_this_one_does_not_know_is_ignored() -> None:
    older = {"model": "m", "k_max": 5, "law": "controller", "minimum_gain_ratio": 0.015, "dwell_s": 2.0}
    assert decode(Policy, json.dumps(older)) == Policy("m", k_max=5)
    schedule = Schedule("m", "p", 1, 0.0, Guidance(override=Override(2)))
    rows = {"valid_for_s": 60.0, "probe_ratio": 0.02, "classes": {"default": [[1, 4, 2]]}, "like_default": ["code"]}
    assert decode(Schedule, json.dumps({**json.loads(encode(schedule)), **rows})) == schedule


def test_guidance_crosses_with_its_schedule_and_an_unknown_field_in_it_is_left_out() -> None:
    asked = Guidance(Objective.LATENCY, {"default": ClassGuidance(), "chat": ClassGuidance(2.0, 1, 5, 25.0)})
    schedule = Schedule("m", "p", 3, 0.0, asked)
    text = encode(schedule)
    assert decode(Schedule, text) == schedule
    newer = json.loads(text)
    newer["guidance"]["horizon_s"] = 4
    newer["guidance"]["classes"]["chat"]["floor"] = 1
    assert decode(Schedule, json.dumps(newer)) == schedule


@pytest.mark.parametrize(
    ("guidance", "fault"),
    [
        ({"objective": "throughput", "classes": {}}, "no 'default'"),
        ({"objective": "throughput", "classes": {"default": {}, "No": {}}}, "guidance.classes.No: 'No' must be"),
        ({"objective": "throughput", "classes": {"default": {"k_min": 4, "k_max": 3}}}, "k_min 4 is above k_max 3"),
        ({"objective": "throughput", "classes": {"default": {"k_max": 65}}}, "k_max: must be at most 64"),
        ({"objective": "throughput", "classes": {"default": {"weight": 0}}}, "weight: must be above 0"),
        ({"objective": "throughput", "classes": {"default": {"tpot_bound_ms": 0}}}, "tpot_bound_ms: must be above 0"),
        ({"objective": "speed", "classes": {"default": {}}}, "guidance.objective"),
        ({"static_k": 65}, "static_k: must be at most 64"),
        ({"override": {"k": -1}}, "k: must be at least 0"),
        ({"override": {"cause": "whim"}}, "guidance.override.cause"),
        ({"probe_ratio": 1.5}, "probe_ratio: must be at most 1"),
    ],
)
def test_each_fault_of_a_guidance_is_named(guidance: dict[str, object], fault: str) -> None:
    plain = to_plain(Schedule("m", "p", 3, 0.0, Guidance()))
    with pytest.raises(InvalidDocumentError, match=re.escape(fault)):
        from_plain(Schedule, plain | {"guidance": guidance})


@pytest.mark.parametrize(
    ("trials", "accepts", "fault"),
    [
        (((1.0,),) * 7, ((1.0,),) * 8, "8 rows"),
        (((1.0, 2.0), *((1.0,),) * 7), ((1.0,),) * 8, "of one length"),
        (((1.0,),) * 8, ((2.0,),) * 8, "between 0 and the trials"),
        (((float("inf"),),) * 8, ((2.0,),) * 8, "finite"),
    ],
)
def test_a_fleets_acceptance_has_a_row_for_each_band_and_no_more_accepts_than_trials(
    trials: tuple[tuple[float, ...], ...], accepts: tuple[tuple[float, ...], ...], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        FleetAcceptance(trials, accepts)
