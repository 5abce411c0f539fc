"""Additions of `bench alerts` to a running system: a Prometheus server with the rules, a limit of Redis' memory."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from specpilot.bench.load.system import wait_for
from specpilot.bench.process_end import end
from specpilot.policy.http_client import open_url
from specpilot.policy.settings import fail

EVERY = "1s"
"""How often all parts are scraped and the rules are evaluated."""


class RedisSocket:
    """Reads and limits the memory of the embedded Redis over its socket; `policy.store` has no such call."""

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("unix://")

    def ask(self, line: str) -> str:
        """Return the whole answer to one inline command; raises `OSError` when there is none in time."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2.0)
            connection.connect(self._path)
            connection.sendall(f"{line}\r\nQUIT\r\n".encode())
            parts = iter(lambda: connection.recv(65_536), b"")
            return b"".join(parts).decode()

    def memory(self) -> Mapping[str, int]:
        """Return the bytes `used_memory` and `maxmemory`."""
        rows = (line.partition(":") for line in self.ask("INFO memory").splitlines())
        return {name: int(value) for name, _, value in rows if name in ("used_memory", "maxmemory")}

    def limit(self, maxmemory_bytes: int) -> None:
        """Set the memory that Redis may use; 0 is no limit."""
        self.ask(f"CONFIG SET maxmemory {maxmemory_bytes}")


class Prometheus:
    """A server that scrapes every part each second."""

    def __init__(self, url: str) -> None:
        self._url = url

    def alerts(self) -> dict[str, str]:
        """Return the state of each active alert, `pending` or `firing`; of several states the worse."""
        with open_url(f"{self._url}/api/v1/alerts", timeout=10.0) as reply:
            alerts = json.load(reply)["data"]["alerts"]
        states: dict[str, str] = {}
        for item in sorted(alerts, key=lambda item: item["state"] == "firing"):
            states[item["labels"]["alertname"]] = item["state"]
        return states

    def faults(self) -> list[str]:
        """Return the errors of the rules' last evaluation."""
        with open_url(f"{self._url}/api/v1/rules", timeout=10.0) as reply:
            groups = json.load(reply)["data"]["groups"]
        return [
            f"{rule['name']}: {rule['lastError']}"
            for group in groups
            for rule in group["rules"]
            if rule.get("lastError")
        ]


@contextmanager
def prometheus(
    program: str, out: Path, port: int, rules: str, targets: Mapping[str, Sequence[int]]
) -> Iterator[Prometheus]:
    """Run Prometheus on `port` with `rules`; `targets` are the ports to scrape on this machine, by job."""
    executable = shutil.which("prometheus")
    if executable is None:
        fail(program, "needs Prometheus: install it (Debian: apt-get install prometheus), so that it is in the PATH")
    (out / "rules.yml").write_text(rules)
    shutil.rmtree(out / "prometheus", ignore_errors=True)  # of a run before
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{number}" for number in ports]}]}
        for job, ports in targets.items()
    ]
    config = {
        "global": {"scrape_interval": EVERY, "evaluation_interval": EVERY},
        "rule_files": [str((out / "rules.yml").resolve())],
        "scrape_configs": jobs,
    }
    (out / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML, too
    command = [executable, f"--config.file={out / 'prometheus.yml'}", f"--storage.tsdb.path={out / 'prometheus'}"]
    with (out / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        wait_for(program, f"http://127.0.0.1:{port}/-/ready", 60.0)
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        end(process)
