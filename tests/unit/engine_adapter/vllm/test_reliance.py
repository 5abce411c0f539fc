"""vLLM has what the adapter relies on: the installed one, and every wheel that `VLLM_WHEELS` brings.

`make check-vllm-versions` downloads wheels for hardware that is not here and runs this file on them.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest

from specpilot.engine_adapter.vllm import versions
from specpilot.engine_adapter.vllm.reliance import RELIANCE, changed, digests, functions, key, lacking
from specpilot.engine_adapter.vllm.reliance_items import Item, Method, Names
from specpilot.engine_adapter.vllm.source import Read, Use, VllmSource
from specpilot.engine_adapter.vllm.v1.reliance import RELIANCE_V1
from specpilot.engine_adapter.vllm.v2.reliance import RELIANCE_V2
from tests.support.stack import ROOT
from tests.support.vllm_wheel import installed_reader, minor, wheel_reader, wheels

ADAPTER = ROOT / "engine_adapter"
LACKS = {"0.24": {"EndpointPlugin"}, "0.25": {"EndpointPlugin"}}
"""The classes that an old version lacks; every other version lacks nothing."""

EVERYTHING = (*RELIANCE, *RELIANCE_V1, *RELIANCE_V2)

installed = cache(installed_reader())


def test_the_installed_vllm_lacks_nothing() -> None:
    assert lacking(VllmSource(installed), EVERYTHING) == ()


@pytest.mark.skipif(not wheels(), reason="VLLM_WHEELS names no folder of wheels: make check-vllm-versions")
def test_the_wheels_lack_the_parts_in_the_table_and_nothing_else() -> None:
    for wheel in wheels():
        found = lacking(VllmSource(wheel_reader(wheel)), (*RELIANCE, *RELIANCE_V1))
        assert {words.split(".")[0].split("(")[0] for words in found} == LACKS.get(minor(wheel), set()), wheel.name


def test_the_installed_vllm_is_the_one_that_was_read() -> None:
    version = ".".join(versions.vllm_version().split(".")[:2])
    of_v2 = RELIANCE_V2 if version in versions.ACCEPTED_ON_V2 else ()
    assert changed(VllmSource(installed), version, (*RELIANCE, *RELIANCE_V1, *of_v2)) == ()


@pytest.mark.skipif(not wheels(), reason="VLLM_WHEELS names no folder of wheels: make check-vllm-versions")
def test_the_wheels_of_accepted_versions_are_those_that_were_read() -> None:
    for wheel in wheels():
        if minor(wheel) in versions.ACCEPTED:
            of_v2 = RELIANCE_V2 if minor(wheel) in versions.ACCEPTED_ON_V2 else ()
            listed = (*RELIANCE, *RELIANCE_V1, *of_v2)
            assert changed(VllmSource(wheel_reader(wheel)), minor(wheel), listed) == (), wheel.name


def test_every_function_of_the_lists_has_been_read() -> None:
    """Otherwise: `make read-vllm`."""
    assert {key(function) for function in functions(EVERYTHING)} == set(digests())


def test_a_change_of_meaning_is_noticed() -> None:
    installed = ".".join(versions.vllm_version().split(".")[:2])
    assert changed(VllmSource(renamed(r"\bpad_spec_decode\b")), installed, EVERYTHING) == ("Scheduler.schedule",)


def test_the_page_names_what_the_versions_that_were_read_only_changed() -> None:
    page = (ROOT / "docs" / "architecture" / "vllm-read.md").read_text()
    for version in versions.READ_VERSIONS:
        section = page.partition(f"## {version}")[2].partition("\n## ")[0]
        found = {function.partition(" ")[2] for function, since in digests().items() if version in since}
        assert found
        assert found == set(
            re.findall(r"`((?:\w+\.)?\w+)`", "".join(re.findall(r"^\| (.*?) \|", section, re.MULTILINE)))
        )


def named() -> Iterator[tuple[Item, str]]:
    for item in EVERYTHING:
        if isinstance(item, Method):
            yield item, item.name
        elif item.kind != "meaning":
            yield from ((item, name) for name in item.names)


def renamed(pattern: str) -> Read:
    """Return a reader of the installed vLLM in which what `pattern` matches has another name."""
    find = re.compile(pattern)

    def read(path: str) -> str | None:
        text = installed(path)
        return find.sub("something_else", text) if text is not None else None

    return read


@pytest.mark.extended("reliance on vLLM, name by name")
@pytest.mark.parametrize(("item", "name"), [pytest.param(*case, id=case[1]) for case in named()])
def test_a_name_that_vllm_no_longer_has_is_noticed(item: Item, name: str) -> None:
    assert list(item.lacking(VllmSource(installed))) == []
    assert any(name in words for words in item.lacking(VllmSource(renamed(rf"\b{name}\b"))))


@pytest.mark.extended("reliance on vLLM, name by name")
@pytest.mark.parametrize("item", [item for item in EVERYTHING if isinstance(item, Method) and item.caller])
def test_a_method_that_vllm_no_longer_calls_is_noticed(item: Method) -> None:
    changed = VllmSource(renamed(rf"(?<!def )\b{item.name}\b"))
    assert any("not called by" in words for words in item.lacking(changed))


@pytest.mark.extended("reliance on vLLM, name by name")
@pytest.mark.parametrize(
    ("item", "name"),
    [
        pytest.param(item, name, id=f"{item.name}-{name}")
        for item in EVERYTHING
        if isinstance(item, Method)
        for name in item.parameters
    ],
)
def test_a_parameter_of_another_name_is_noticed(item: Method, name: str) -> None:
    changed = VllmSource(renamed(rf"\b{name}\b"))
    [words] = item.lacking(changed)
    place = item.parameters.index(name)
    assert words.rpartition("(it takes ")[2].rstrip(")").split(", ")[place] == "something_else"


def test_a_field_that_must_be_given_and_is_not_is_noticed() -> None:
    for item in EVERYTHING:
        if isinstance(item, Names) and item.kind == "fields":
            short = replace(item, names=item.names[1:])
            assert list(short.lacking(VllmSource(installed))) == [f"{item.owner} without the field {item.names[0]}"]


def parsed(module: str) -> ast.Module:
    return ast.parse((ADAPTER / "vllm" / module).read_text())


OVERRIDES = {item.name: item for item in EVERYTHING if isinstance(item, Method) and item.use is not Use.CALL}
INSTANCES = {"current_platform": "Platform"}


def known(reliance: Sequence[Item]) -> set[str | None]:
    owners = {item.owner for item in reliance if item.owner} | {item.file for item in reliance}
    return owners | {name for item in reliance if isinstance(item, Names) and not item.owner for name in item.names}


@pytest.mark.parametrize(("runner", "of_runner"), [("v1", RELIANCE_V1), ("v2", RELIANCE_V2), (None, ())])
def test_what_the_adapter_imports_from_vllm_is_on_the_list_of_that_runner(
    runner: str | None, of_runner: Sequence[Item]
) -> None:
    listed = known((*RELIANCE, *of_runner))
    imported = [
        (node.module or "", alias.name)
        for path in ADAPTER.rglob("*.py")
        if (path.parent.name if path.parent.name in {"v1", "v2"} else None) == runner
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm.")
        for alias in node.names
    ]
    assert len(imported) > 3
    for module, name in imported:
        folder = module.removeprefix("vllm.").replace(".", "/")
        assert {INSTANCES.get(name, name), f"{folder}/{name}.py", f"{folder}/__init__.py"} & listed, (module, name)


def test_what_the_schedulers_override_is_on_the_list_with_the_same_parameters() -> None:
    found = set()
    for node in ast.walk(parsed("scheduler.py")):
        if not isinstance(node, ast.FunctionDef) or node.name == "__init__":
            continue
        if f"super().{node.name}(" in ast.unparse(node):
            names = tuple(argument.arg for argument in node.args.args[1:])
            assert OVERRIDES[node.name].parameters == names, node.name
            found.add(node.name)
    assert found == {name for name, item in OVERRIDES.items() if (item.owner or "").endswith("Scheduler")}


def test_what_the_schedulers_take_from_their_base_is_on_the_list() -> None:
    taken = set(
        re.findall(
            r"self\.(\w+)\b(?!.*self\.)[^\n]*# type: ignore\[attr-defined\]",
            (ADAPTER / "vllm" / "scheduler.py").read_text(),
        )
    )
    listed = {name for item, name in named() if getattr(item, "owner", None) == "Scheduler"}
    assert taken
    assert taken <= listed


@pytest.mark.parametrize(
    ("module", "owner"),
    [
        ("engine_args.py", "EngineArgs"),
        ("v1/installation.py", "GPUModelRunner"),
        ("v1/installation.py", "SpecDecodeBaseProposer"),
        ("v2/installation.py", "GPUModelRunner"),
        ("v2/installation.py", "TargetDependentARSpeculator"),
        ("v2/installation.py", "VllmConfig"),
    ],
)
def test_what_is_wrapped_is_on_the_list(module: str, owner: str) -> None:
    touched = {
        node.attr
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == owner
    }
    assert touched
    assert touched <= {name for item, name in named() if getattr(item, "owner", None) == owner}


def test_the_page_states_how_each_version_was_tested() -> None:
    page = (ROOT / "docs" / "reference" / "engine-vllm.md").read_text()
    rows = dict(re.findall(r"^\| (0\.\d+) \| (.*) \|$", page, re.MULTILINE))
    for version in versions.TESTED_VERSIONS:
        assert "runs" in rows[version]
    for version in versions.READ_VERSIONS:
        assert "source" in rows[version]
    for version in LACKS:
        assert "rejected" in rows[version]
    assert {version for version, row in rows.items() if "| runs" in row} == set(versions.ACCEPTED)
