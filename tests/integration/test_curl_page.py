"""The page on operating with curl: its blocks run, in order, on a real controller that steers an engine over HTTP."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.engine import MODEL, POOL
from tests.support.controller_engine import living_engines
from tests.support.controller_program import Controller, running_controller
from tests.support.patience import PATIENCE_S
from tests.support.stack import until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "curl.md"

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.fixture
def controller() -> Iterator[Controller]:
    """A controller that steers an engine, has a policy of the model and trusts its machine, as that of `make up`."""
    with running_controller(token=None) as found, living_engines(found.redis.url) as (store, _):
        assert found.call(f"/admin/policies/{MODEL}", "PUT", {"classes": {"code": {}}}, None)[0] == 201
        until(lambda: bool(store.decisions(MODEL, POOL, 1)))
        yield found


def test_every_step_of_the_page(controller: Controller, tmp_path: Path) -> None:
    steps = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    script = "set -euo pipefail\n" + "\n".join(steps).replace("http://127.0.0.1:8081", controller.url)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    for words in (
        '"name":"night shift","role":"operator"',
        'If-Match: "1"',
        '"dry_run":true,"subject":"demo","version":2',
        '"forecast":[{"model":"demo","pool":"cpu"',
        "Since then night shift changed",
        "refused: the policy has changed",
        '"meaning":',
        '"outcome":"promoted"',
        '{"model":"demo","from":2,"to":4,"changes":[{',
        '"field":"objective","before":"throughput","after":"latency"',
        '"hold":"current"',
        '"action":"freeze_model"',
    ):
        assert words in said, words + "\n" + said + done.stderr
    versions = controller.call(f"/admin/policies/{MODEL}/versions", token=None)[1]["versions"]
    assert [(item["version"], item["cause"], item["author"]) for item in versions] == [
        (5, "rollback", "night shift"),
        (4, "canary", "night shift"),
        (3, "patch", "night shift"),
        (2, "put", "night shift"),
        (1, "put", "this machine"),
    ]
    assert controller.call("/admin/freezes", token=None)[1]["freezes"] == []
    assert controller.call("/admin/tokens", token=None)[1]["tokens"] == []
    results = [item["result"] for item in controller.call("/admin/audit?limit=20", token=None)[1]["entries"]]
    assert results.count("refused") == 1
