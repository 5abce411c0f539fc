"""The metrics of a program on this machine, each summed over its labels."""

from collections import defaultdict
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


def metric_sums(port: int, timeout_s: float = 5.0) -> defaultdict[str, float]:
    """Return the sums by name of the program on `port`; a metric that it lacks is 0."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=timeout_s) as reply:
        text = reply.read().decode()
    sums: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value
    return sums
