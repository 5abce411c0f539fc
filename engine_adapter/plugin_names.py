"""The value of `VLLM_PLUGINS` that loads the adapter, and every plugin that loads without the variable.

If `VLLM_PLUGINS` is unset, vLLM loads every plugin except those that add routes (`vllm.endpoint_plugins`), so the
adapter's route would not load. If it is set, vLLM loads only the plugins in it. With the adapter's name alone a
platform, a LoRA resolver or a logger of statistics would not load, so these are added. Two kinds are not added, because
their name in the variable is a permission: plugins that add routes under the same name, and vLLM's resolver that
downloads.
"""

from collections.abc import Callable, Iterable
from importlib import metadata

ADAPTER = "specpilot"
VARIABLE = "VLLM_PLUGINS"
GROUPS = tuple(f"vllm.{kind}_plugins" for kind in ("general", "platform", "io_processor", "stat_logger"))
"""The groups whose plugins vLLM loads if the variable is unset."""
_ROUTES = "vllm.endpoint_plugins"
_PERMITTED_BY_NAME = frozenset(("lora_hf_hub_resolver",))


def _installed(group: str) -> Iterable[str]:
    return [plugin.name for plugin in metadata.entry_points(group=group)]


def with_adapter(named: str | None, installed: Callable[[str], Iterable[str]] = _installed) -> tuple[str, list[str]]:
    """Return the variable's value with the adapter in it, and the plugins that do not load because of it.

    `named` is its present value, `None` if it is unset; `installed` returns the plugins of a group.
    """
    if named is not None:
        return ",".join(dict.fromkeys([*filter(None, named.split(",")), ADAPTER])), []
    plugins = dict.fromkeys(name for group in GROUPS for name in installed(group))
    with_routes = {*installed(_ROUTES)} - {ADAPTER}
    loaded = [name for name in plugins if name not in with_routes and name not in _PERMITTED_BY_NAME]
    return ",".join(dict.fromkeys([*loaded, ADAPTER])), [name for name in plugins if name in with_routes]
