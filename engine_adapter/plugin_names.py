"""`VLLM_PLUGINS`: the switch of the adapter. Without the adapter's name in it the installed package changes nothing.

Also the value of the variable that loads the adapter, and every plugin that loads without the variable.

If `VLLM_PLUGINS` is unset, vLLM loads every plugin except those that add routes (`vllm.endpoint_plugins`), so the
adapter's route would not load. If it is set, vLLM loads only the plugins in it. With the adapter's name alone a
platform, a LoRA resolver or a logger of statistics would not load, so these are added. Two kinds are not added, because
their name in the variable is a permission: plugins that add routes under the same name, and vLLM's resolver that
downloads.
"""

import os
from collections.abc import Callable, Iterable
from importlib import metadata

from specpilot.engine_adapter.errors import UnsupportedEngineError

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


def is_switched_on() -> bool:
    """Whether `VLLM_PLUGINS` names the adapter, read as vLLM reads it: a name with a blank is another one."""
    return ADAPTER in os.environ.get(VARIABLE, "").split(",")


def check_switched_on() -> None:
    """Raise `UnsupportedEngineError` if the adapter's scheduler is used without its plugin."""
    if not is_switched_on():
        raise UnsupportedEngineError(
            f"the adapter's plugin is not loaded: set {VARIABLE}={ADAPTER} (names by commas, without blanks), and "
            "leave out --scheduler-cls"
        )


def switch_on() -> list[str]:
    """Put the adapter into `VLLM_PLUGINS`, for this process and those that it starts.

    Returns the plugins that do not load because of it.
    """
    os.environ[VARIABLE], switched_off = with_adapter(os.environ.get(VARIABLE))
    return switched_off
