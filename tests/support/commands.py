"""The product's commands, run in the test's process: starting Python takes longer than most of them do."""

import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch

from specpilot import cli
from specpilot.controller.admin.audited import AUDIT_LOGGER


def run(*words: str, text: str = "") -> CompletedProcess[str]:
    """Run `specpilot WORDS` with `text` as its standard input, until it ends or has served."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    status: object = None
    with (
        warnings.catch_warnings(action="ignore", category=ResourceWarning),  # the system would close it
        _own_logging(),
        patch.object(sys, "argv", ["specpilot", *words]),
        patch.object(sys, "stdin", io.StringIO(text)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            status = ended.code
    said, told = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    if isinstance(status, str):  # as Python ends a program with a text
        status, told = 1, f"{told}{status}\n"
    return CompletedProcess(words, int(status or 0), said, told)  # type: ignore[call-overload]


@contextmanager
def _own_logging() -> Iterator[None]:
    """Let a program set logging up as if the process were its own, and put everything back."""
    hooks = sys.excepthook, sys.unraisablehook, threading.excepthook
    loggers = [logging.getLogger(name) for name in (None, AUDIT_LOGGER)]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers.clear()
    try:
        yield
    finally:
        for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.level, logger.propagate = handlers, level, propagate
        sys.excepthook, sys.unraisablehook, threading.excepthook = hooks
        logging.captureWarnings(capture=False)
