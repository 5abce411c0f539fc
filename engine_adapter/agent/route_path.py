"""Where a request goes within vLLM's application."""

from collections.abc import Mapping
from typing import Any


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path of an ASGI request as the application's routes have it: without `--root-path`.

    A proxy may leave that prefix on the path or have taken it off; vLLM serves both.
    """
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path
