from xml.etree import ElementTree as ET

from specpilot.bench.demo.shift_picture import k_runs, picture
from specpilot.bench.demo.system import Reading
from specpilot.bench.demo.trace import LoadPhase, Trace

TRACE = Trace((LoadPhase("calm <1>", 2.0, {"code": 1}), LoadPhase("crowd", 2.0, {"chat": 24})))
RATES = {"adaptive": [100.0, 200.0], "K=0": [50.0, 200.0]}


def reading(at: float, drafts: dict[str, float], verified: dict[str, float]) -> Reading:
    return Reading(at, 0.0, drafts, verified, {})


CALM = [reading(10, {}, {}), reading(11, {"code": 5}, {"code": 35}), reading(12, {"code": 10}, {"code": 70})]
CROWD = [reading(12, {"code": 10}, {"code": 70}), reading(14, {"code": 10, "chat": 8}, {"code": 70, "chat": 0})]


def test_the_picture_is_svg_and_names_every_phase() -> None:
    drawn = picture(TRACE, RATES, [CALM, CROWD])
    ET.fromstring(drawn)
    assert "calm &lt;1&gt;" in drawn


def test_k_is_what_was_verified_between_two_readings_by_class() -> None:
    runs = {name: list(k_runs(name, [CALM, CROWD], [0.0, 2.0])) for name in ("code", "chat")}
    assert runs == {"code": [[(0.0, 7.0), (1.0, 7.0), (1.0, 7.0), (2.0, 7.0)]], "chat": [[(2.0, 0.0), (4.0, 0.0)]]}


def test_nothing_drafted_is_a_picture_too() -> None:
    ET.fromstring(picture(TRACE, RATES, [[reading(1, {}, {})], [reading(2, {}, {})]]))
