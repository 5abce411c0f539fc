"""The path of a request within vLLM's application."""

from collections.abc import Mapping
from typing import Any


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path of an ASGI request without `--root-path`, as the application's routes state it.

    A proxy may keep that prefix or remove it; vLLM serves both.
    """
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path
