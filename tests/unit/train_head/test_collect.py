"""What is collected for a head: rows of token ids, each prompt once, and nothing that was not asked for."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.support.scripted_engine import Script, ScriptedEngine, Seen, reply
from tests.support.stack import ROOT

COLLECT = ROOT / "deploy" / "train_head" / "collect.py"


def answer(seen: Seen) -> Script:
    said = seen.json["messages"][-1]["content"]
    if said == "refused":
        return [reply(b'{"error": {"message": "no"}}', "400 Bad Request")]
    body = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "demo",
        "prompt_token_ids": [1, 2, 3],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hi"},
                "finish_reason": "stop",
                "token_ids": [7, 8],
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
    return [reply(json.dumps(body).encode())]


async def collect(engine: ScriptedEngine, prompts: Path, out: Path, *more: str) -> tuple[int, str]:
    command = [sys.executable, str(COLLECT), "--url", engine.url, "--prompts", str(prompts), "--out", str(out), *more]
    running = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    _, said = await running.communicate()
    return running.returncode or 0, said.decode()


async def test_each_prompt_becomes_a_row_a_temperature_once_and_a_refused_one_is_said(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.choose = answer
    await engine.start()
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "rows.jsonl"
    texts = ["one", "refused", "two"]
    prompts.write_text("".join(json.dumps({"messages": [{"role": "user", "content": text}]}) + "\n" for text in texts))
    status, said = await collect(engine, prompts, out)
    assert status == 1
    assert "prompt 2: " in said
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == [{"input_ids": [1, 2, 3, 7, 8], "loss_mask": [0, 0, 0, 1, 1]}] * 4
    assert {seen.json["temperature"] for seen in engine.seen} == {0.0, 1.0}
    asked = len(engine.seen)
    await collect(engine, prompts, out)
    assert {seen.json["messages"][0]["content"] for seen in engine.seen[asked:]} == {"refused"}
    assert len(out.read_text().splitlines()) == 4
    await engine.stop()


async def test_a_proxy_a_byte_order_mark_and_a_line_break_behind_the_key_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    engine = ScriptedEngine()
    engine.choose = answer
    await engine.start()
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "rows.jsonl"
    prompts.write_text(json.dumps({"messages": [{"role": "user", "content": "one"}]}) + "\r\n", encoding="utf-8-sig")
    assert await collect(engine, prompts, out, "--api-key", "sk-1\n") == (0, "")
    assert {seen.headers["authorization"] for seen in engine.seen} == {"Bearer sk-1"}
    await engine.stop()


async def test_rows_of_another_question_are_not_mixed(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.choose = answer
    await engine.start()
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "rows.jsonl"
    prompts.write_text(json.dumps({"messages": [{"role": "user", "content": "one"}]}) + "\n")
    assert (await collect(engine, prompts, out))[0] == 0
    rows, asked = out.read_text(), len(engine.seen)
    for more in (["--model", "other"], ["--temperature", "0.5"], ["--max-tokens", "8"]):
        status, said = await collect(engine, prompts, out, *more)
        assert status == 1
        assert f"--out: {out} holds rows of other {more[0]}; name another file" in said
    prompts.write_text(json.dumps({"messages": [{"role": "user", "content": "two"}]}) + "\n")
    _, said = await collect(engine, prompts, out)
    assert "holds rows of other --prompts;" in said
    assert (out.read_text(), len(engine.seen)) == (rows, asked)
    await engine.stop()


async def test_a_text_with_separators_of_its_own_is_one_line_and_no_row_at_all_is_said(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.choose = answer
    await engine.start()
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "rows.jsonl"
    record = {"messages": [{"role": "user", "content": "a\u2028b"}, {"role": "user", "content": "refused"}]}
    prompts.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    status, said = await collect(engine, prompts, out)
    assert status == 1
    assert "prompt 1: " in said
    assert "Traceback" not in said
    assert engine.seen[0].json["messages"] == record["messages"]
    await engine.stop()
