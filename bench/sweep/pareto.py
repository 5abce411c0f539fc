"""`specpilot bench pareto`: throughput over tokens per second and user, adaptive K beside each single K.

It is `specpilot bench sweep` with other defaults: mixed text, and loads from one request to many. `pareto.svg` has, for
each data set, a line for each arm, from few requests in flight (right) to many (left). A line above another one gives
more tokens per second at the same speed for each user.
"""

from collections.abc import Sequence

from specpilot.bench.sweep import command

DEFAULTS = {
    "--arms": "none,p-eagle,adaptive",
    "--data": "mixed",
    "--concurrency": "1,2,4,8,16,32",
    "--k": "0,1,3,5,7",
    "--out": ".specpilot/bench-pareto",
}


def main(arguments: Sequence[str]) -> None:
    """Run a sweep with these defaults, for the flags that `arguments` do not have."""
    flags = {item.partition("=")[0] for item in arguments}
    defaults = [word for flag, value in DEFAULTS.items() if flag not in flags for word in (flag, value)]
    command.main([*defaults, *arguments])
