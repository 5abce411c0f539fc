from controller.load import Load
from controller.observation import Evidence


def evidence(drafts: dict[str, float], running: dict[str, float]) -> Evidence:
    return Evidence({}, {}, {(name, 3): count for name, count in drafts.items()}, {}, {}, {}, running)


def test_the_mix_is_the_share_of_the_drafts_while_nothing_runs() -> None:
    load = Load()
    load.take(evidence({"code": 30, "chat": 10}, {}), 1.0, 1.0)
    assert load.shares() == {"code": 0.75, "chat": 0.25}


def test_a_crowd_that_runs_now_outweighs_the_drafts_of_the_last_look() -> None:
    load = Load()
    load.take(evidence({"chat": 90, "json": 10}, {"json": 16, "code": 16}), 1.0, 1.0)
    shares = load.shares()
    assert shares["json"] > 0.4
    assert shares["code"] > 0.4
    assert shares["chat"] < 0.15


def test_one_request_that_runs_now_says_little() -> None:
    load = Load()
    load.take(evidence({"chat": 90, "json": 10}, {"json": 1}), 1.0, 1.0)
    assert load.shares()["chat"] > 0.65


def test_nothing_is_present_before_the_first_draft() -> None:
    assert Load().shares() == {}
