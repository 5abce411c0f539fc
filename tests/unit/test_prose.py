"""The words of `tests.support.prose` stay out of code and pages."""

from pathlib import Path

from tests.support.prose import ROOT, names, places

FOLDERS = ("policy", "gateway", "controller", "engine_adapter", "bench", "deploy", "docs", "tests")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def test_the_prose_uses_the_fields_words() -> None:
    found = places(*(ROOT / name for name in (*FOLDERS, *PAGES)))
    assert [str(place) for place in found if place.path != Path(__file__).resolve()] == []


def test_names_say_what_a_value_is() -> None:
    found = names(*(ROOT / name for name in FOLDERS if name != "tests"))
    assert [str(place) for place in found] == []


def test_an_everyday_word_as_a_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "def told(own, left, right):\n    x.seen = [kept for kept in own]\n    found: int = 1\n"
    )
    assert [(place.line, place.words) for place in names(tmp_path)] == [
        (1, "told"),
        (1, "own"),
        (2, "seen"),
        (2, "kept"),
        (3, "found"),
    ]


def test_a_word_is_found_in_comments_strings_and_pages(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""One line.\n\nA request who waits."""\n\nx = 1  # all but for one\n')
    (tmp_path / "b.md").write_text("A look at `a look`.\n```\nbut for code\n```\nOperators who read.\n")
    found = [(place.path.name, place.line, place.words) for place in places(tmp_path)]
    assert found == [("a.py", 3, "request who"), ("a.py", 5, "but for"), ("b.md", 1, "A look")]
