"""Makes a vLLM of a version that has no CPU build: the Python of its wheel, the compiled code of the installed build.

`python -m tests.support.vllm_overlay WHEEL FOLDER`. With FOLDER first in PYTHONPATH it is imported in place of the
installed vLLM (`make test-vllm`). A compiled function that is not there, or takes other arguments, fails where it is
called.
"""

import shutil
import sys
import zipfile
from importlib import util
from pathlib import Path


def make(wheel: Path, folder: Path) -> None:
    """Write the package to `folder`."""
    installed = util.find_spec("vllm")
    assert installed is not None
    assert installed.origin is not None
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("vllm/") and not name.endswith(".so")]
        archive.extractall(folder, names)
    for library in Path(installed.origin).parent.glob("*.so"):
        shutil.copy(library, folder / "vllm")
    version = wheel.name.split("-")[1]
    information = folder / f"vllm-{version}.dist-info"
    information.mkdir(exist_ok=True)
    # vLLM finds its platform by this word in its version.
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


if __name__ == "__main__":
    make(*map(Path, sys.argv[1:]))
