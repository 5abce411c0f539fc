"""Commands that end with status 2 and say why."""

from collections.abc import Callable
from typing import Any

import pytest


def refusal(capsys: pytest.CaptureFixture[str], command: Callable[..., Any], *arguments: Any) -> str:
    """Call `command`, and return what it wrote to its standard error."""
    with pytest.raises(SystemExit) as ended:
        command(*arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err
