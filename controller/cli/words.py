"""Reads a command line: the words before its flags, which are the command and what it names, and texts of flags."""

import re
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import AfterValidator

from specpilot.controller.cli.client import AdminSettings
from specpilot.policy.clean_text import fault_of
from specpilot.policy.settings import fail, load

S = TypeVar("S", bound=AdminSettings)
_COMMAND = re.compile(r"^  ([a-z]+(?: [a-z]+)?)((?: \[?[A-Z]+(?: \.\.\.)?\]?)*)(?=  | \[?--|$)", re.MULTILINE)
_HELP = frozenset({"-h", "--help"})


def readable(read: Callable[[str], object]) -> AfterValidator:
    """Return the check of a flag whose text must be one that `read` takes: it raises `ValueError` for others."""

    def check(text: str) -> str:
        read(text)
        return text

    return AfterValidator(check)


def parsed(arguments: Sequence[str], program: str, usage: str, kind: type[S]) -> tuple[str, list[str], S]:
    """Return the command of one or two words, the words that it takes, and the settings of the rest.

    `usage` has a line for each command, such as `  diff MODEL FROM [TO]  the difference`: what is in brackets may be
    left out, and dots let it repeat.
    """
    commands = {name: takes.replace(" ...", "...").split() for name, takes in _COMMAND.findall(usage)}
    words = list(arguments)
    end = next((at for at, word in enumerate(words) if word.startswith("-") and word != "-"), len(words))
    asks_for_help = bool(_HELP & set(words[end : end + 1]))
    if fault := next(filter(None, map(fault_of, words[:end])), None):
        fail(program, f"a word of the command {fault}")
    command = next((name for name in (" ".join(words[:2]), words[0] if end else "") if name in commands), None)
    takes = commands[command] if command else []
    names = words[command.count(" ") + 1 : end] if command else []
    least = sum(not name.startswith("[") for name in takes)
    if not words or (asks_for_help and len(names) < max(1, least)):
        sys.stdout.write(usage)
        sys.exit(0 if words else 2)
    if command is None:
        fail(program, f"there is no such command; choose one of {', '.join(commands)}")
    if len(names) < least:
        fail(program, f"{command}: name the {takes[len(names)].lower()}, as in {usage}")
    most = len(names) if takes and takes[-1].endswith("...]") else len(takes)
    return command, names[:most], load(kind, f"{program} {command}", names[most:] + words[end:])
