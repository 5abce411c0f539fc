"""Draws the import graph by folder as Mermaid, into structure.md beside this file: `make structure`.

A program's root modules wire its folders and are drawn as one node, but for those that its folders import.
"""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import grimp

PAGE = Path(__file__).with_name("structure.md")
BEGIN, END = "<!-- graph: begin -->", "<!-- graph: end -->"
PROGRAMS = ("gateway", "controller", "engine_adapter", "bench")


def folder_of(module: str, leaves: Collection[str] = ()) -> str | None:
    """Return what a module is drawn as: `gateway/wire`, `gateway`, `policy`; `None` for the package itself.

    A program's root modules are one node, but for `leaves`, which its folders import (`settings`, `errors`).
    """
    parts = module.split(".")[1:]
    if not parts:
        return None
    if parts[0] not in PROGRAMS:
        return parts[0] if parts[0] == "policy" else "specpilot"
    return "/".join(parts[:2]) if len(parts) > 2 or module in leaves else parts[0]  # noqa: PLR2004 - folder, module


def leaves_of(graph: grimp.ImportGraph) -> set[str]:
    """Return the root modules that a folder of their program imports."""
    return {
        imported
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if imported.count(".") == 2  # noqa: PLR2004 - specpilot.program.module
        and importer.count(".") > 2  # noqa: PLR2004 - specpilot.program.folder.module
        and importer.split(".")[1] == imported.split(".")[1]
    }


def arrows(graph: grimp.ImportGraph) -> Counter[tuple[str, str]]:
    """Return how many imports lead from each folder to each other one."""
    found: Counter[tuple[str, str]] = Counter()
    leaves = leaves_of(graph)
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            pair = folder_of(importer, leaves), folder_of(imported, leaves)
            if pair[0] and pair[1] and pair[0] != pair[1]:
                found[pair[0], pair[1]] += 1
    return found


def mermaid(found: Counter[tuple[str, str]]) -> str:
    """Return one diagram a program: its folders, and the arrows between them."""
    blocks = []
    for program in PROGRAMS:
        lines = ["```mermaid", "flowchart TD"]
        for source, target in sorted(found):
            if source.split("/")[0] == program == target.split("/")[0]:
                lines.append(f"  {_node(source, program)} --> {_node(target, program)}")
        blocks.append("\n".join([f"### {program}", "", *lines, "```"]))
    return "\n\n".join(blocks)


def _node(folder: str, program: str) -> str:
    """A node's name and label; a root is drawn with rounded corners."""
    name = folder.replace("/", "_")
    return f'{name}(["{program}: root"])' if folder == program else f"{name}[{folder.split('/')[1]}]"


def page_with(text: str, graph: str) -> str:
    """Return the page's text with this graph between the marks."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{graph}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    drawn = mermaid(arrows(grimp.build_graph("specpilot")))
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), drawn), encoding="utf-8")
