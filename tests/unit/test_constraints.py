"""What `make setup` installs is whole on every Python 3.11, not only on the one that the versions come from."""

from importlib import metadata

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.stack import ROOT


@pytest.mark.parametrize("version", ["3.11.0", "3.11.2", "3.11.14"])
def test_what_only_some_pythons_need_is_pinned_for_them(version: str) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    environment: dict[str, str] = {**default_environment(), "python_full_version": version, "extra": ""}
    pinned = {canonicalize_name(pin.name) for pin in pins if pin.marker is None or pin.marker.evaluate(environment)}
    needed = {
        canonicalize_name(requirement.name)
        for pin in pins
        for text in _requirements_of(pin.name)
        if (requirement := Requirement(text)).marker is not None
        and "python_full_version" in str(requirement.marker)
        and requirement.marker.evaluate(environment)
    }
    assert needed - pinned == set()


def _requirements_of(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # pinned for another Python than this one
        return []
