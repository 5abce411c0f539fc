"""What is read from source text, on small sources of the shapes that vLLM has."""

import pytest

from specpilot.engine_adapter.vllm.source import Use, VllmSource

FILES = {
    "a.py": """
from vllm.b import Base
if True:
    pass
class Child(Base):
    field: int = 0
    plain = 1
    def __init__(self, one, two=2, *, three, four=4):
        self.set, self.also = one, two
        other.nothing = 3
    @property
    def seen(self): return self.set
    @staticmethod
    def still(one): ...
    def caller(self):
        self.hook(1)
        helper(2)
def helper(x, y=0): ...
""",
    "b.py": """
from typing import overload
from dataclasses import field
class Base(Absent):
    @overload
    def hook(self, x: int): ...
    @overload
    def hook(self, x: str): ...
    def hook(self, x, *rest, **more): self.inner = 5
    async def later(self): ...
class Record:
    needed: int
    given: int = 0
    made: list = field(default_factory=list)
    hidden: int = field(init=False)
    marked: int = field(metadata={})
    def __post_init__(self):
        self.derived = 1
""",
}
SOURCE = VllmSource(FILES.get)


def test_parameters_are_those_after_self() -> None:
    found = SOURCE.signature("a.py", "Child", "__init__")
    assert found is not None
    assert found.parameters == ("one", "two", "three", "four")
    assert found.required == {"one", "three"}


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [(None, "helper", ("x", "y")), ("Child", "still", ("one",)), ("Child", "hook", ("x",)), ("Child", "later", ())],
)
def test_functions_static_and_inherited_methods_are_found(
    owner: str | None, name: str, parameters: tuple[str, ...]
) -> None:
    found = SOURCE.signature("a.py", owner, name)
    assert found is not None
    assert found.parameters == parameters


@pytest.mark.parametrize(
    ("file", "owner", "name"), [("c.py", None, "f"), ("a.py", None, "g"), ("a.py", "No", "f"), ("a.py", "Child", "no")]
)
def test_what_is_not_there_is_none(file: str, owner: str | None, name: str) -> None:
    assert SOURCE.signature(file, owner, name) is None
    assert SOURCE.mentions(file, owner, name) == frozenset()
    assert SOURCE.attributes(file, "No") == frozenset()


@pytest.mark.parametrize(
    ("use", "parameters", "fits"),
    [
        (Use.OVERRIDE, ("one", "two", "three", "four"), True),
        (Use.OVERRIDE, ("one", "two", "three"), False),
        (Use.WRAP, ("one",), True),
        (Use.WRAP, ("two",), False),
        (Use.CALL, ("one", "two", "three"), True),
        (Use.CALL, ("one", "two"), False),
    ],
)
def test_fit_depends_on_the_use(use: Use, parameters: tuple[str, ...], fits: bool) -> None:
    found = SOURCE.signature("a.py", "Child", "__init__")
    assert found is not None
    assert found.fits(use, parameters) is fits


def test_attributes_are_what_the_class_and_its_bases_define() -> None:
    found = SOURCE.attributes("a.py", "Child")
    assert found >= {"field", "plain", "set", "also", "seen", "still", "hook", "later"}
    assert not found & {"nothing", "inner"}
    assert "derived" in SOURCE.attributes("b.py", "Record")


def test_required_fields_are_those_without_a_default() -> None:
    assert SOURCE.required_fields("b.py", "Record") == {"needed", "marked"}


def test_a_method_mentions_names_and_attributes() -> None:
    assert SOURCE.mentions("a.py", "Child", "caller") >= {"hook", "helper"}


def digest(text: str) -> str:
    found = VllmSource({"a.py": text}.get).digest("a.py", None, "f")
    assert found is not None
    return found


CODE = "def f(x, y=0):\n    z = x + y\n    return g(z, 'a')"


@pytest.mark.parametrize(
    "text",
    [
        CODE.replace("    ", "  ").replace("x + y", "(x +\n   y)"),
        CODE.replace("z =", "# why\n    z ="),
        CODE.replace(":\n", ':\n    """What."""\n', 1),
        CODE.replace("x, y=0):", "x: int, y: int = 0) -> int:"),
        CODE.replace("'a'", '"a"'),
    ],
)
def test_layout_comments_and_annotations_leave_the_digest(text: str) -> None:
    assert digest(text) == digest(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x + y", "x - y"),
        ("y=0", "y=1"),
        ("y=0", "y=None"),
        ("'a'", "'b'"),
        ("g(z", "h(z"),
        ("    z", "    pass\n    z"),
    ],
)
def test_another_operation_value_name_or_statement_changes_the_digest(old: str, new: str) -> None:
    assert digest(CODE.replace(old, new)) != digest(CODE)


def test_what_is_not_there_has_no_digest() -> None:
    assert SOURCE.digest("a.py", "Child", "absent") is None
