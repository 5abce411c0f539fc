"""The byte-level BPE vocabulary, and token rows for training.

Owns: `tokenizer.json`, `tokenizer_config.json` and their special tokens; encoding conversations.
JSON text is left out of the merges on purpose: its long keys then take several tokens each.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .conversation import CHAT_TEMPLATE, Conversation
from .llama import BOS_ID, EOS_ID, MASK_ID, PAD_ID, SPECIAL_TOKENS, START_ID


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """A vocabulary of exactly `vocab_size` entries, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that `transformers` and vLLM read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS_ID],
        "eos_token": SPECIAL_TOKENS[EOS_ID],
        "pad_token": SPECIAL_TOKENS[PAD_ID],
        "additional_special_tokens": [SPECIAL_TOKENS[START_ID], SPECIAL_TOKENS[MASK_ID]],
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read the files of `save_tokenizer`."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def encode_conversations(tokenizer: Tokenizer, items: list[Conversation]) -> list[list[int]]:
    """One list of ids per conversation, opened by the document token."""
    return [[BOS_ID, *encoding.ids] for encoding in tokenizer.encode_batch([item.text() for item in items])]
