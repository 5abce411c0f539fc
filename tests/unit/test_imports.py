"""No circle between files, and the page on the structure is true. Which folder may import which: the contracts say."""

from collections.abc import Iterable, Mapping
from importlib.util import module_from_spec, spec_from_file_location

import grimp
import pytest

from tests.support.stack import ROOT

PROGRAMS = ("policy", "gateway", "controller", "engine_adapter", "bench")


def imports_within(program: str) -> dict[str, set[str]]:
    graph = grimp.build_graph("specpilot")
    names = {name for name in graph.modules if name.startswith(f"specpilot.{program}.")}
    return {name: graph.find_modules_directly_imported_by(name) & names for name in names}


def circles(imports: Mapping[str, Iterable[str]]) -> set[frozenset[str]]:
    """Return the largest sets of names that reach one another (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in imports.get(name, ()):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            members = frozenset(stack[at:])
            del stack[at:]
            if len(members) > 1:
                found.add(members)

    for name in imports:
        if name not in index:
            visit(name)
    return found


def test_what_a_circle_is() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": []}) == {frozenset("abc")}
    assert circles({"a": ["b", "c"], "b": ["c"], "c": []}) == set()


@pytest.mark.parametrize("program", PROGRAMS)
def test_files_import_one_another_in_no_circle(program: str) -> None:
    assert circles(imports_within(program)) == set()


def test_the_page_shows_the_graph_as_it_is() -> None:
    spec = spec_from_file_location("structure", ROOT / "docs" / "architecture" / "structure.py")
    assert spec is not None
    assert spec.loader is not None
    structure = module_from_spec(spec)
    spec.loader.exec_module(structure)
    page = structure.PAGE.read_text(encoding="utf-8")
    assert structure.page_with(page, structure.graph(structure.PROGRAMS)) == page, "run `make structure`"
    for program, drawn in structure.drawings(structure.arrows(grimp.build_graph("specpilot"))).items():
        kept = (structure.IMAGES / f"structure-{program}.svg").read_text(encoding="utf-8")
        assert drawn == kept, "run `make structure`"
