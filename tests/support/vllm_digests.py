"""Writes `engine_adapter/vllm/digests.json`: what each function that the adapter relies on is in each version of vLLM.

`make read-vllm` runs it on wheels of all accepted versions, when the differences of a new one have been read
(`docs/architecture/vllm-read.md`) or a list of reliance has got another function.
"""

import json
from collections.abc import Iterable

from specpilot.engine_adapter.vllm import reliance, versions
from specpilot.engine_adapter.vllm.reliance import RELIANCE, functions, key
from specpilot.engine_adapter.vllm.source import VllmSource
from specpilot.engine_adapter.vllm.v1.reliance import RELIANCE_V1
from specpilot.engine_adapter.vllm.v2.reliance import RELIANCE_V2
from tests.support.vllm_wheel import minor, wheel_reader, wheels


def table(sources: Iterable[tuple[str, VllmSource]]) -> dict[str, dict[str, str]]:
    """Return the digests of the `sources`, in order of version: by function, then by the first version that has it."""
    found: dict[str, dict[str, str]] = {}
    for version, source in sources:
        of_v2 = RELIANCE_V2 if version in versions.ACCEPTED_ON_V2 else ()
        for function in functions((*RELIANCE, *RELIANCE_V1, *of_v2)):
            since, digest = found.setdefault(key(function), {}), source.digest(*function)
            if digest is not None and digest != next(reversed(since.values()), None):
                since[version] = digest
    return dict(sorted(found.items()))


def main() -> None:
    """Write the table."""
    by_version = {minor(wheel): VllmSource(wheel_reader(wheel)) for wheel in wheels()}
    found = table((version, by_version[version]) for version in versions.ACCEPTED)
    lines = [f"{json.dumps(function)}: {json.dumps(since)}" for function, since in found.items()]
    reliance.DIGESTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
