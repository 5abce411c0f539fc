"""The words of `tests.support.prose` stay out of the folders that are written in plain words."""

from pathlib import Path

from tests.support.prose import ROOT, places

PLAIN = (
    "gateway",
    "tests/contract",
    "tests/unit/gateway",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    *("bench", "controller", "deploy", "tests/unit/bench", "tests/unit/controller", "tests/unit/deploy"),
    *(f"docs/{name}" for name in ("README.md", "architecture", "concepts", "decisions", "get-started", "how-to")),
    *(f"docs/{name}" for name in ("measurements", "operations", "runbooks")),
    "docs/reference/gateway",
    *(f"docs/reference/{name}.md" for name in ("README", "bench", "commands", "controller", "support", "up")),
    *(f"docs/reference/{name}.md" for name in ("cuda-graphs", "engine", "engine-steps", "engine-vllm", "presets")),
    *(f"{part}{name}" for part in ("", "tests/unit/") for name in ("engine_adapter", "policy")),
)


def test_the_prose_uses_the_fields_words() -> None:
    assert [str(place) for place in places(*(ROOT / name for name in PLAIN))] == []


def test_a_word_is_found_in_comments_strings_and_pages(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""One line.\n\nA request who waits."""\n\nx = 1  # all but for one\n')
    (tmp_path / "b.md").write_text("A look at `a look`.\n```\nbut for code\n```\nOperators who read.\n")
    found = [(place.path.name, place.line, place.words) for place in places(tmp_path)]
    assert found == [("a.py", 3, "request who"), ("a.py", 5, "but for"), ("b.md", 1, "A look")]
