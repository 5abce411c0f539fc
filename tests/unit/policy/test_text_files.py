"""Files with a byte order mark, as some editors and shells write them."""

import codecs
import json
from pathlib import Path

import pytest

from specpilot.bench.demo.trace import read_prompts
from specpilot.engine_adapter.__main__ import _head_config
from specpilot.gateway.app import _own_keys
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy.codec import decode
from specpilot.policy.settings import load
from specpilot.policy.text_files import read_text
from specpilot.up_settings import UpSettings, policy_given


@pytest.mark.parametrize(
    "data",
    [b"\xc3\xa4", codecs.BOM_UTF8 + b"\xc3\xa4", codecs.BOM_UTF16_LE + "\u00e4".encode("utf-16-le")],
    ids=["plain", "utf-8", "utf-16"],
)
def test_a_mark_is_no_part_of_the_text(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(data)
    assert read_text(tmp_path / "text") == "\u00e4"


def test_files_with_a_mark_are_read(tmp_path: Path) -> None:
    def written(name: str, document: object) -> str:
        path = tmp_path / name
        path.write_bytes(codecs.BOM_UTF8 + json.dumps(document).encode())
        return str(path)

    keys = written("keys.json", [{"key_id": "a", "key": "sk-1"}])
    assert _own_keys(load(GatewaySettings, "t", ["--engine", "http://a:1", "--api-keys-file", keys]))[0].key_id == "a"
    policy = written("policy.json", {"model": "demo", "k_max": 3})
    for given in (policy, '\ufeff {"model": "demo", "k_max": 3}', '{"model": "demo", "k_max": 3}'):
        found = policy_given(load(UpSettings, "t", ["--policy", given]))
        assert found is not None
        assert found.k_max == 3
    written("config.json", {"model_type": "llama"})
    assert _head_config(str(tmp_path)) is not None
    assert decode(dict, Path(policy).read_bytes()) == {"model": "demo", "k_max": 3}
    assert decode(dict, Path(policy).read_text()) == {"model": "demo", "k_max": 3}
    own = Path(written("own.jsonl", {"messages": ["\u2028"]}))
    own.write_bytes(own.read_bytes() + ' \r\n{"messages": ["\u2028"]}\r\n \r\n'.encode())
    assert read_prompts(tmp_path, ("own",)) == {"own": [{"messages": ["\u2028"]}] * 2}
