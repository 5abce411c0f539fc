"""Collects a draft head's training data: the target's own replies to given prompts, through the gateway.

Reads JSONL with `messages` in each line. Writes JSONL with `input_ids` and `loss_mask` (0 over the prompt, 1 over the
reply), the input of `speculators prepare-data`. The file holds the text of prompts and replies as token ids: protect it
like the traffic itself. The gateway keeps no bodies; only this script collects any.

A second run continues the first: it skips prompts whose rows are in the file. The first line of the `.progress` file
beside it names the prompts, model and settings, and a run with others is rejected.

    python deploy/train_head/collect.py --url http://127.0.0.1:8080 --prompts prompts.jsonl --out rows.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient


async def reply_rows(
    client: AsyncOpenAI, arguments: argparse.Namespace, number: int, messages: list[Any]
) -> list[dict[str, Any]]:
    """The row of one prompt at each temperature; raises `APIError`."""
    rows = []
    for temperature in arguments.temperature:
        reply = await client.chat.completions.create(
            model=arguments.model,
            messages=messages,
            max_tokens=arguments.max_tokens,
            temperature=temperature,
            seed=number,
            extra_body={"return_token_ids": True},
        )
        prompt, made = getattr(reply, "prompt_token_ids", None), getattr(reply.choices[0], "token_ids", None)
        if not prompt or not made:
            raise SystemExit("the reply has no token ids: is this a vLLM that knows return_token_ids?")
        rows.append({"input_ids": [*prompt, *made], "loss_mask": [0] * len(prompt) + [1] * len(made)})
    return rows


def done_before(arguments: argparse.Namespace, prompts: list[Any]) -> set[int]:
    """Return the numbers of the prompts with rows; ends the program when other settings made those rows."""
    question = {
        "prompts": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
        "model": arguments.model,
        "temperature": arguments.temperature,
        "max-tokens": arguments.max_tokens,
    }
    if not arguments.progress.exists():
        arguments.progress.write_text(json.dumps(question) + "\n")
        return set()
    first, *numbers = arguments.progress.read_text().splitlines() or ["null"]
    known = json.loads(first)
    differs = [f"--{name}" for name in question if not isinstance(known, dict) or known.get(name) != question[name]]
    if differs:
        raise SystemExit(
            f"--out: {arguments.out} holds rows of other {', '.join(differs)}; "
            f"name another file, or remove it together with {arguments.progress}"
        )
    return {int(number) for number in numbers}


async def collect(arguments: argparse.Namespace) -> int:
    """Collect the missing rows; return the number of prompts that failed."""
    # split at "\n" only: a text may hold other line separators
    lines = arguments.prompts.read_text(encoding="utf-8-sig").split("\n")
    prompts = [json.loads(line)["messages"] for line in lines if line.strip()]
    numbers = done_before(arguments, prompts)
    waiting = iter([number for number in range(len(prompts)) if number not in numbers])
    failed = 0
    direct = DefaultAsyncHttpxClient(trust_env=False)  # the gateway is never behind the user's proxy
    key = arguments.api_key.strip()
    async with AsyncOpenAI(base_url=f"{arguments.url}/v1", api_key=key, max_retries=2, http_client=direct) as client:

        async def work() -> None:
            nonlocal failed
            for number in waiting:
                try:
                    rows = await reply_rows(client, arguments, number, prompts[number])
                except APIError as error:
                    failed += 1
                    print(f"prompt {number + 1}: {error}", file=sys.stderr)
                    continue
                with arguments.out.open("a") as out, arguments.progress.open("a") as progress:
                    out.write("".join(json.dumps(row) + "\n" for row in rows))
                    progress.write(f"{number}\n")

        await asyncio.gather(*(work() for _ in range(arguments.concurrency)))
    return failed


def main() -> None:
    """Collect; exit status 1 when a prompt failed: run it again for the failed ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the gateway")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--concurrency", type=int, default=16)
    arguments = parser.parse_args()
    arguments.progress = arguments.out.with_suffix(".progress")
    failed = asyncio.run(collect(arguments))
    rows = sum(1 for _ in arguments.out.open()) if arguments.out.exists() else 0
    print(f"{rows} rows in {arguments.out}; {failed} prompts failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
