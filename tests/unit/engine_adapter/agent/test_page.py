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


def test_counters_of_several_pages_are_added_up_and_of_gauges_the_last_counts() -> None:
    other = Family("x_steps_total", "Steps", COUNTER, ("model_name", "band"))
    other.add(1.5, "m", "chat")
    other.add(7, "m", "one\x85two")
    found = samples(together([page(3, 5), other.text(), page(4, 6)]))
    assert found == {
        ("x_steps_total", ("m", "0")): 7.0,
        ("x_steps_total", ("m", "chat")): 5.5,
        ("x_steps_total", ("m", "one\x85two")): 7.0,
        ("x_k", ("m",)): 6.0,
    }
    assert together([page(3, 5)]) == page(3, 5)
    assert together([]) == ""


def test_histograms_of_several_pages_are_added_up() -> None:
    pages = []
    for values in ((0.5, 1.5), (1.5, 9.0)):
        histogram = Histogram("x_seconds", "Seconds", ("traffic_class",), (1.0, 2.0))
        histogram.observe(values, "chat")
        pages.append(histogram.text())
    assert samples(together(pages)) == {
        ("x_seconds_bucket", ("chat", "1")): 1.0, ("x_seconds_bucket", ("chat", "2")): 3.0,
        ("x_seconds_bucket", ("chat", "+Inf")): 4.0, ("x_seconds_sum", ("chat",)): 12.5,
        ("x_seconds_count", ("chat",)): 4.0,
    }  # fmt: skip
