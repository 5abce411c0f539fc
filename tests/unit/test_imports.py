"""No circle between files, and the page on the structure is true. Which folder may import which: the contracts say."""

from graphlib import TopologicalSorter
from importlib.util import module_from_spec, spec_from_file_location

import grimp
import pytest

from tests.support.stack import ROOT

PROGRAMS = ("policy", "gateway", "controller", "engine_adapter", "bench")


def imports_within(program: str) -> dict[str, set[str]]:
    graph = grimp.build_graph("specpilot")
    names = {name for name in graph.modules if name.startswith(f"specpilot.{program}.")}
    return {name: graph.find_modules_directly_imported_by(name) & names for name in names}


@pytest.mark.parametrize("program", PROGRAMS)
def test_files_import_one_another_in_no_circle(program: str) -> None:
    imports = imports_within(program)
    assert any(imports.values())
    TopologicalSorter(imports).prepare()  # raises CycleError, which names a circle


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
