import errno
import io
import json
import threading

import pytest

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


class Broken(io.StringIO):
    """A stream on a full disk, until it `has_space`."""

    has_space = False

    def flush(self) -> None:
        if not self.has_space:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_neither_the_system_nor_the_reader_of_a_part() -> None:
    out = Broken()
    journal = Journal(out, lambda: 1.0)
    journal.say("lost")
    out.has_space = True
    journal.say("kept")
    assert json.loads(out.getvalue().splitlines()[-1])["message"] == "kept"


@pytest.mark.parametrize("line", ['{"a": "mod\u00e8le"}', '{"a": "\\ud800"}', '{"a": ' + "[" * 16_000])
def test_any_line_is_written_in_any_encoding(line: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    Journal(out, lambda: 1.0).add("p", line)
    assert json.loads(out.buffer.getvalue())["part"] == "p"  # type: ignore[attr-defined]


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
