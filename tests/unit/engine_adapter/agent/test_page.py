from prometheus_client.parser import text_string_to_metric_families

from specpilot.engine_adapter.agent.page import COUNTER, GAUGE, Family, Histogram, part_of, together


def samples(page: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (found.name, tuple(found.labels.values())): found.value
        for family in text_string_to_metric_families(page)
        for found in family.samples
    }


def page(steps: float, k: float) -> str:
    counter = Family("x_steps_total", "Steps", COUNTER, ("model_name", "band"))
    counter.add(steps, "m", "0")
    counter.add(2.0, "m", "chat")
    gauge = Family("x_k", "Mean K", GAUGE, ("model_name",))
    gauge.set(k, "m")
    return counter.text() + gauge.text()


def test_a_series_is_the_sum_of_what_was_added() -> None:
    counter = Family("x_steps_total", "Steps", COUNTER, ("band",))
    for amount in (1, 0.25, 3):
        counter.add(amount, "7")
    counter.add(1, "0")
    assert samples(counter.text()) == {("x_steps_total", ("7",)): 4.25, ("x_steps_total", ("0",)): 1.0}
    assert counter.text().startswith("# HELP x_steps_total Steps\n# TYPE x_steps_total counter\n")


def test_what_is_0_from_the_start_is_not_shown_and_a_gauge_of_0_is() -> None:
    counter = Family("x_steps_total", "Steps", COUNTER, ("band",))
    counter.add(0, "7")
    assert counter.text() == ""
    gauge = Family("x_k", "Mean K", GAUGE, ("model_name",))
    gauge.set(3, "m")
    gauge.set(0, "m")
    assert samples(gauge.text()) == {("x_k", ("m",)): 0.0}


def test_any_text_can_be_a_label() -> None:
    name = 'a"b\\c\nd,e={}'
    gauge = Family("x_k", "Mean K", GAUGE, ("model_name",))
    gauge.set(1, name)
    assert samples(gauge.text()) == {("x_k", (name,)): 1.0}


def test_a_part_of_a_page_has_the_named_metrics_and_no_other() -> None:
    assert set(samples(part_of(page(3, 5), {"x_k", "other"}))) == {("x_k", ("m",))}
    assert part_of(page(3, 5), {"x_k", "x_steps_total"}) == page(3, 5)
    assert part_of(page(3, 5), {"x"}) == ""


def test_a_gauge_that_was_cleared_shows_what_is_set_anew() -> None:
    gauge = Family("x_k", "Mean K", GAUGE, ("traffic_class",))
    gauge.set(3, "gone")
    gauge.clear()
    gauge.set(2, "chat")
    assert samples(gauge.text()) == {("x_k", ("chat",)): 2.0}


def test_pages_of_several_engine_cores_are_one_with_each_family_once() -> None:
    pages = []
    for rank in "01":
        counter = Family("x_steps_total", "Steps", COUNTER, ("engine", "name"))
        counter.add(3, rank, "one\x85two")
        histogram = Histogram("x_seconds", "Seconds", ("engine",), (1.0,))
        histogram.observe((0.5, 9.0), rank)
        pages.append(counter.text() + histogram.text())
    gauge = Family("x_k", "Mean K", GAUGE, ("engine",))
    gauge.set(5, "1")
    found = together([pages[0], pages[1] + gauge.text()])
    assert samples(found) == samples(pages[0]) | samples(pages[1]) | samples(gauge.text())
    assert found.count("# TYPE x_seconds histogram") == found.count("# TYPE x_steps_total counter") == 1
    assert together(pages[:1]) == pages[0]
    assert together([]) == ""
