import re
from xml.etree import ElementTree as ET

from specpilot.bench.control.shift_picture import K_HEIGHT, K_TOP, picture
from specpilot.bench.load.system import Reading
from specpilot.bench.load.trace import Phase, Trace

TRACE = Trace((Phase("calm <1>", 2.0, {"code": 1}), Phase("crowd", 2.0, {"chat": 24})))
RATES = {"adaptive": [100.0, 200.0], "K=0": [50.0, 200.0]}


def reading(at: float, drafts: dict[str, float], verified: dict[str, float]) -> Reading:
    return Reading(at, 0.0, {}, drafts, verified, {}, {})


CALM = [reading(10, {}, {}), reading(11, {"code": 5}, {"code": 35}), reading(12, {"code": 10}, {"code": 70})]
CROWD = [reading(12, {"code": 10}, {"code": 70}), reading(14, {"code": 10, "chat": 8}, {"code": 70, "chat": 0})]


def test_the_picture_is_svg_and_has_a_bar_for_each_arm_and_phase() -> None:
    drawn = picture(TRACE, RATES, [CALM, CROWD])
    ET.fromstring(drawn)
    assert drawn.count("<title>") == 4
    assert "calm &lt;1&gt;" in drawn


def test_k_is_what_was_verified_between_two_readings_by_class() -> None:
    lines = re.findall(r'points="([^"]+)"', picture(TRACE, RATES, [CALM, CROWD]))
    assert len(lines) == 2  # chat in the crowd, code in the calm; neither where it did not run
    heights = {line: {float(point.split(",")[1]) for point in line.split()} for line in lines}
    assert sorted(map(sorted, heights.values())) == [[K_TOP], [K_TOP + K_HEIGHT]]  # 7, the highest, and 0


def test_nothing_drafted_is_a_picture_too() -> None:
    ET.fromstring(picture(TRACE, RATES, [[reading(1, {}, {})], [reading(2, {}, {})]]))
