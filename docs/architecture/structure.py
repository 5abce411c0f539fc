"""Draws the import graph by folder, one SVG a program, for structure.md beside this file: `make structure`.

A program's root modules wire its folders and are drawn as one node, except those that its folders import.
"""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import grimp

PAGE = Path(__file__).with_name("structure.md")
BEGIN, END = "<!-- graph: begin -->", "<!-- graph: end -->"
PROGRAMS = ("gateway", "controller", "engine_adapter", "bench")
IMAGES = PAGE.parents[1] / "images"
STEP_X, STEP_Y, BOX_W, BOX_H = 150, 80, 124, 32
"""Distances of nodes and sizes of their boxes, in pixels."""


def folder_of(module: str, leaves: Collection[str] = ()) -> str | None:
    """Return what a module is drawn as: `gateway/wire`, `gateway`, `policy`; `None` for the package itself.

    A program's root modules are one node, except `leaves`, which its folders rest on (`settings`, `errors`).
    """
    parts = module.split(".")[1:]
    if not parts:
        return None
    if parts[0] not in PROGRAMS:
        return parts[0] if parts[0] == "policy" else "specpilot"
    return "/".join(parts[:2]) if len(parts) > 2 or module in leaves else parts[0]  # noqa: PLR2004 - folder, module


def leaves_of(graph: grimp.ImportGraph) -> set[str]:
    """Return the root modules that a folder of their program imports, and those that these import."""
    leaves: set[str] = set()
    newest = {
        imported
        for importer in graph.modules
        if importer.count(".") > 2  # noqa: PLR2004 - specpilot.program.folder.module
        for imported in _root_modules_of(importer, graph)
    }
    while newest:
        leaves |= newest
        newest = {imported for leaf in newest for imported in _root_modules_of(leaf, graph)} - leaves
    return leaves


def _root_modules_of(importer: str, graph: grimp.ImportGraph) -> set[str]:
    """Return the root modules of its program that `importer` imports."""
    return {
        imported
        for imported in graph.find_modules_directly_imported_by(importer)
        if imported.count(".") == 2  # noqa: PLR2004 - specpilot.program.module
        and importer.split(".")[1] == imported.split(".")[1]
    }


def arrows(graph: grimp.ImportGraph) -> Counter[tuple[str, str]]:
    """Return how many imports lead from each folder to each other one."""
    counts: Counter[tuple[str, str]] = Counter()
    leaves = leaves_of(graph)
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            pair = folder_of(importer, leaves), folder_of(imported, leaves)
            if pair[0] and pair[1] and pair[0] != pair[1]:
                counts[pair[0], pair[1]] += 1
    return counts


def drawings(counts: Counter[tuple[str, str]]) -> dict[str, str]:
    """Return one SVG a program: its folders in layers, and the arrows that do not follow from others."""
    drawn = {}
    for program in PROGRAMS:
        imports = {(a, b) for a, b in counts if a.split("/")[0] == program == b.split("/")[0]}
        drawn[program] = svg(program, imports)
    return drawn


def svg(program: str, imports: Collection[tuple[str, str]]) -> str:
    """Return the graph of `imports` without circles, each node below all that import it."""
    names = sorted({name for pair in imports for name in pair})
    targets = {name: sorted(b for a, b in imports if a == name) for name in names}
    below = {name: _reached(name, targets) for name in names}
    arrows_shown = [(a, b) for a, b in sorted(imports) if not any(b in below[c] for c in targets[a])]
    depth = {name: _depth(name, imports) for name in names}
    rows = [[name for name in names if depth[name] == level] for level in range(max(depth.values()) + 1)]
    width = max(len(row) for row in rows) * STEP_X
    place = {
        name: (round(width * (at + 0.5) / len(row)), level * STEP_Y + BOX_H)
        for level, row in enumerate(rows)
        for at, name in enumerate(row)
    }
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {len(rows) * STEP_Y + 10}" role="img"'
            f' font-family="system-ui, sans-serif" font-size="14" aria-label="Imports of {program}">'
        ),
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 8 4 0 8z" fill="#7b8794"/></marker></defs>'
        ),
        '<g fill="none" stroke="#7b8794" marker-end="url(#tip)">',
    ]
    for a, b in arrows_shown:
        (x, y), (to_x, to_y) = place[a], place[b]
        top, bottom = y + BOX_H // 2, to_y - BOX_H // 2
        middle = (top + bottom) // 2
        lines.append(f'<path d="M{x} {top}C{x} {middle} {to_x} {middle} {to_x} {bottom}"/>')
    lines.append('</g><g fill="#e8f0fe" stroke="#3b6fb6">')
    for name, (x, y) in place.items():
        corner = BOX_H // 2 if name == program else 4
        box = f'x="{x - BOX_W // 2}" y="{y - BOX_H // 2}" width="{BOX_W}" height="{BOX_H}" rx="{corner}"'
        lines.append(f"<rect {box}/>")
    lines.append('</g><g fill="#1f2933" text-anchor="middle">')
    for name, (x, y) in place.items():
        lines.append(f'<text x="{x}" y="{y + 5}">{"root" if name == program else name.split("/")[1]}</text>')
    return "\n".join([*lines, "</g></svg>"]) + "\n"


def _reached(name: str, targets: dict[str, list[str]]) -> set[str]:
    """Every node that arrows lead to from `name`."""
    return {node for target in targets[name] for node in {target, *_reached(target, targets)}}


def _depth(name: str, imports: Collection[tuple[str, str]]) -> int:
    """The length of the longest way to `name`."""
    return max((_depth(a, imports) + 1 for a, b in imports if b == name), default=0)


def graph(programs: Collection[str]) -> str:
    """Return what the page shows between its marks."""
    shown = [f"### {name}\n\n![Imports of {name}](../images/structure-{name}.svg)" for name in programs]
    return "\n\n".join(shown)


def page_with(text: str, shown: str) -> str:
    """Return the page's text with `shown` between the marks."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{shown}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    for program, drawn in drawings(arrows(grimp.build_graph("specpilot"))).items():
        (IMAGES / f"structure-{program}.svg").write_text(drawn, encoding="utf-8")
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), graph(PROGRAMS)), encoding="utf-8")
