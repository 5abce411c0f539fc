"""The `specpilot` command: a table of sub-commands, each the `main(arguments)` of the part that it belongs to.

A sub-command's module is imported only when that sub-command runs, so that the gateway never loads the controller and
neither of them loads vLLM.
"""

import errno
import io
import os
import select
import signal
import sys
from importlib import import_module, metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

from specpilot.policy import standard_streams

COMMANDS = {
    "up": ("specpilot.up", "run Redis, engine, controller and gateway on this machine"),
    "gateway": ("specpilot.gateway.__main__", "run the OpenAI-compatible gateway"),
    "controller": ("specpilot.controller.__main__", "run the controller, its admin API and console"),
    "engine": ("specpilot.engine_adapter.__main__", "run vLLM with live K; other flags go to vLLM"),
    "check": ("specpilot.engine_adapter.check", "say whether vLLM's flags run with live K, before a start"),
    "presets": ("specpilot.engine_adapter.list_presets", "list published pairs of target and draft head"),
    "policy": ("specpilot.controller.cli.policy", "list, read, write, try and take back policies"),
    "freeze": ("specpilot.controller.cli.freeze", "hold K of a model, or of everything, for a time"),
    "audit": ("specpilot.controller.cli.audit", "who did what, when and from where"),
    "token": ("specpilot.controller.cli.admin_token", "make, rotate and revoke the admin API's tokens"),
    "key": ("specpilot.controller.cli.client_key", "make, change, rotate and revoke client keys"),
    "models": ("specpilot.controller.cli.models", "set aliases, splits and fall-back models"),
    "explain": ("specpilot.controller.cli.explain", "say which K is in force, why, and from which evidence"),
    "export": ("specpilot.controller.cli.export", "write the schedule as a table for engines without the adapter"),
    "bench": ("specpilot.bench.__main__", "measure on your own engines; `specpilot bench` lists what"),
}


def main() -> None:
    """Run the sub-command that the command line names."""
    standard_streams.open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: a name may have other letters
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        sys.exit(0 if arguments else 2)
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"specpilot {metadata.version('specpilot')} ({_hot_path()})\n")
        sys.exit(0)
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        sys.stderr.write(f"specpilot: there is no such command\n{_usage()}")
        sys.exit(2)
    try:
        try:
            import_module(COMMANDS[name][0]).main(rest)
        finally:
            sys.stdout.flush()
    except OSError as error:
        is_left = isinstance(error, BrokenPipeError) and _reader_left()  # as by `| head`: no fault
        if not is_left and error.errno != errno.ENOSPC:
            raise
        # Python flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_left:
            sys.exit(128 + signal.SIGPIPE)
        sys.stderr.write(f"specpilot: not everything could be written: {error.strerror}\n")
        sys.exit(1)


def _reader_left() -> bool:
    """Whether the error is that of standard output, not of a connection of the command."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _hot_path() -> str:
    """Which of the two distributions runs: found without importing the gateway."""
    spec = find_spec("specpilot.gateway.relay.relay")
    is_compiled = spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))
    return "gateway compiled" if is_compiled else "gateway in plain Python"


def _usage() -> str:
    rows = "\n".join(f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items())
    return f"usage: specpilot COMMAND [FLAG ...]\n\n{rows}\n\n`specpilot COMMAND --help` lists a command's flags.\n"


if __name__ == "__main__":
    main()
