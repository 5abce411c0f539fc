import io
import json
import threading

from specpilot.journal import LINE_LIMIT, Journal, worded


def test_a_plain_line_is_a_message_with_its_time_and_part() -> None:
    assert worded("engine-0", "INFO ready ", 0.25) == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "part": "engine-0",
        "message": "INFO ready",
    }


def test_a_json_line_keeps_its_fields_and_what_only_looks_like_one_is_a_message() -> None:
    assert worded("gateway", '{"status": 200}', 0.0)["status"] == 200
    assert worded("gateway", "{status", 0.0)["message"] == "{status"
    assert worded("gateway", "[1]", 0.0)["message"] == "[1]"


def test_lines_of_many_threads_are_whole_and_bounded_and_empty_ones_are_left_out() -> None:
    out = io.StringIO()
    journal = Journal(out, lambda: 1.0)
    threads = [threading.Thread(target=lambda: [journal.add("p", "x" * 100_000) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.add("p", " \n")
    journal.say("ready")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == 81
    assert {len(line["message"]) for line in lines[:-1]} == {LINE_LIMIT}
    assert lines[-1]["part"] == "specpilot"
