"""The metrics of a program on this machine, each summed over its labels."""

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from specpilot.policy.http_client import open_url


def metric_sums(port: int, timeout_s: float = 5.0) -> defaultdict[str, float]:
    """Return the sums by name of the program on `port`; a metric that it lacks is 0."""
    with open_url(f"http://127.0.0.1:{port}/metrics", timeout=timeout_s) as reply:
        text = reply.read().decode()
    sums: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value
    return sums
