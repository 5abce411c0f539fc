"""The `specpilot` command: a table of sub-commands, each the `main(arguments)` of the part that it belongs to.

A sub-command's module is imported only when it is asked for, so that the gateway never loads the controller and
neither of them loads vLLM.
"""

import sys
from importlib import import_module, metadata

COMMANDS = {
    "up": ("specpilot.up", "run Redis, engine, controller and gateway on this machine"),
    "gateway": ("gateway.__main__", "run the OpenAI-compatible gateway"),
    "controller": ("controller.__main__", "run the controller, its admin API and console"),
    "engine": ("engine_adapter.__main__", "run vLLM with live K; other flags go to vLLM"),
    "policy": ("controller.policy_cli", "list, read, write and delete policies"),
    "explain": ("controller.explain", "say which K is in force, why, and from which evidence"),
    "replay": ("controller.replay", "run recorded observations through the control law again"),
    "bench": ("bench.__main__", "measure on your own engines; `specpilot bench` lists what"),
}


def main() -> None:
    """Run the sub-command that the command line names."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        sys.exit(0 if arguments else 2)
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"specpilot {metadata.version('specpilot')}\n")
        sys.exit(0)
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        sys.stderr.write(f"specpilot: there is no command {name!r}\n{_usage()}")
        sys.exit(2)
    import_module(COMMANDS[name][0]).main(rest)


def _usage() -> str:
    rows = "\n".join(f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items())
    return f"usage: specpilot COMMAND [FLAG ...]\n\n{rows}\n\n`specpilot COMMAND --help` lists a command's flags.\n"


if __name__ == "__main__":
    main()
