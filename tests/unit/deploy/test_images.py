"""The Dockerfiles: checked by hadolint, and what every image of ours must have."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "images"
FILES = sorted(FOLDER.glob("*Dockerfile"))
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


@pytest.mark.skipif(HADOLINT is None, reason="the extra `dev` brings it")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(path: Path) -> None:
    done = subprocess.run([str(HADOLINT), "--no-color", str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0


def stages(path: Path) -> list[str]:
    return re.split(r"^FROM ", path.read_text(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_runs_is_nobody_with_a_health_check_and_signals(path: Path) -> None:
    last = stages(path)[-1]
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE)[-1] == "65532:65532"
    assert "HEALTHCHECK" in last
    assert re.search(r'^ENTRYPOINT \["', last, re.MULTILINE)  # no shell between the signal and the program
    assert re.search(r"^STOPSIGNAL SIGTERM$", path.read_text(), re.MULTILINE)


def test_the_image_of_gateway_and_controller_has_what_their_settings_need() -> None:
    """`--oidc-issuer` and tracing need extras: the line of the image that lists what is installed is run."""
    text = (FOLDER / "Dockerfile").read_text()
    [program] = re.findall(r"python3 -c '([^']+)' >needs.txt", text)
    root = FOLDER.parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert done.stdout.splitlines() == [*project["dependencies"], *extras["otel"], *extras["oidc"]]


def test_what_an_image_copies_is_let_in() -> None:
    let_in = {line[1:] for line in (FOLDER.parents[1] / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    root = FOLDER.parents[1]
    assert all((root / name).exists() for name in let_in)
    packages = {
        path.resolve().relative_to(root).parts[0] for path in (root / "specpilot").iterdir() if path.is_symlink()
    }
    assert packages | {"specpilot", "setup.py", "pyproject.toml", "README.md", "deploy/images"} <= let_in


def test_the_entry_point_of_an_endpoint_leaves_out_the_platforms_argument(tmp_path: Path) -> None:
    program = tmp_path / "specpilot"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    cases = {("serve",): "up --sagemaker", ("serve", "--k", "3"): "up --sagemaker --k 3", (): "up --sagemaker"}
    for given, wanted in cases.items():
        done = subprocess.run(
            [str(FOLDER / "sagemaker-serve"), *given],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        )
        assert done.stdout.strip() == wanted
