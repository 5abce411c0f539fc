"""`specpilot bench sweep` by URL on a stock vLLM that knows nothing of SpecPilot, beside `vllm bench serve` itself.

How fast either says the server is, is compared by `specpilot bench agreement` on a quiet machine. Here both do the same
work, and their files say so in the same names. It has an engine of its own, and comes before the one of the whole
system starts.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specpilot.bench.agreement import command as agreement
from specpilot.bench.agreement.comparison import FIGURES, fault
from specpilot.bench.agreement.stock import stock_server
from specpilot.bench.sweep import command as sweep
from tests.support.stack import call, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.extended("bench agreement")]

REQUESTS, TOKENS, K = 12, 16, 3
ELSEWHERE = {"max_output_tokens_per_s", "max_concurrent_requests", "rtfx", "burstiness"}
"""What a sweep's cell does not have of vLLM's numbers: peaks within the run, a ratio for audio, how requests arrive."""

READER = (
    "import json, sys; from vllm.benchmarks.sweep.plot_pareto import _prepare_records as read; "
    "print(json.dumps(read([json.load(open(sys.argv[1]))], user_count_var='max_concurrency', gpu_count_var=None)))"
)


@pytest.mark.timeout(300)
def test_a_sweep_of_a_stock_vllm_does_the_work_of_vllm_bench_serve_and_names_it_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ["--num-prompts", str(REQUESTS), "--output-tokens", str(TOKENS)]
    flags = ["--data", f"sharegpt={tmp_path / 'questions.json'}", "--concurrency", "2,4", "--repetitions", "1"]
    with stock_server(tmp_path, free_port(), K) as url:
        assert call(f"{url}/speculation")[0] == 404
        agreement.main(["--url", url, "--pairs", "1", "--concurrency", "4", "--out", str(tmp_path), *size])
        flags += ["--endpoints", f"eagle3={url}", "--out", str(tmp_path / "sweep"), "--output-spread", "0"]
        sweep.main([*flags, *size])
    said = capsys.readouterr()
    assert "eagle3 is measured at the K that it has" in said.err
    [line] = [line for line in said.out.splitlines() if line.startswith("{")]
    assert all(ratio["median"] > 0 for ratio in json.loads(line)["ours_over_vllm"].values())
    theirs = json.loads((tmp_path / "vllm-1.json").read_text())
    paths = sorted((tmp_path / "sweep" / "cells").iterdir())
    assert [path.stem for path in paths] == ["eagle3__sharegpt__c2__1", "eagle3__sharegpt__c4__1"]
    found = [json.loads(path.read_text()) for path in paths]
    for cell in found:
        assert (cell["completed"], cell["failed"]) == (REQUESTS, 0)
        assert cell["total_output_tokens"] == REQUESTS * TOKENS
        assert fault((cell, theirs)) is None
        assert len(cell["spec_decode_per_position_acceptance_rates"]) == K
    ours = found[1]
    figures = {name for name, value in theirs.items() if isinstance(value, int | float) and name not in ELSEWHERE}
    assert figures >= {*FIGURES, "p99_itl_ms", "spec_decode_acceptance_length"}
    assert figures - ours.keys() == set()
    read = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READER, str(paths[1])], capture_output=True, text=True, check=True
    )
    [[record], skipped] = json.loads(read.stdout.splitlines()[-1])
    assert skipped == 0
    assert record["tokens_per_user"] == pytest.approx(ours["output_throughput"] / 4)
