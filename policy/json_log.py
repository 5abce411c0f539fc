"""Standard error as lines of JSON, from a program's first line to its last.

`use` redirects everything that would otherwise be a plain line: log records (also those with wrong arguments), Python's
warnings, uncaught exceptions of any thread or finalizer, and `policy.settings.fail`. Each line is one object: `at`
(Unix seconds), `level`, `logger`, `message`, the fields that the program adds to all its lines, and `exception` (a
traceback). Lines that are JSON of another shape (access log, audit) stay unchanged.
"""

import json
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from typing_extensions import override


class JsonFormatter(logging.Formatter):
    """One JSON object a record; `more` is added to each."""

    def __init__(self, more: Mapping[str, Any]) -> None:
        super().__init__()
        self._more = more

    @override
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._more,
            "message": _message_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        # Another encoding would write missing characters as escapes that are not valid in JSON.
        is_utf_8 = (sys.stderr.encoding or "").lower() in ("utf-8", "utf8")
        return json.dumps(line, ensure_ascii=not is_utf_8, default=str)


def use(level: str = "info", **more: Any) -> None:
    """Write lines of JSON from now on, of at least `level`, with `more` in each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(more))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    sys.unraisablehook = _log_unraisable


def is_used() -> bool:
    """Whether standard error is lines of JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def is_asked_for(arguments: Sequence[str], variable: str | None) -> bool:
    """Whether `--log-format json` is among `arguments`, or without that flag `variable` is `json`.

    Needed before the settings are read, because their faults are logged in the same format.
    """
    log_format = (variable or "").lower()
    for at, argument in enumerate(arguments):
        if argument == "--log-format" and at + 1 < len(arguments):
            log_format = arguments[at + 1]
        elif argument.startswith("--log-format="):
            log_format = argument.partition("=")[2]
    return log_format == "json"


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - an argument's own code; `logging` itself would write a plain traceback
        return f"{_repr_of(record.msg)} {_repr_of(record.args)}"


def _repr_of(value: object) -> str:
    """Return the text of `value`, or the name of its type if its own code fails."""
    try:
        return value if isinstance(value, str) else repr(value)
    except Exception:  # noqa: BLE001 - the value's own code
        return f"<{type(value).__name__}>"


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger().critical("the program ends by an exception", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _log_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    message = f"{unraisable.err_msg or 'an exception was ignored in'}: {_repr_of(unraisable.object)}"
    error, trace = unraisable.exc_value, unraisable.exc_traceback
    logging.getLogger().error(message, exc_info=None if error is None else (unraisable.exc_type, error, trace))
