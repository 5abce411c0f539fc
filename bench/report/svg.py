"""Plots of matplotlib as SVG texts."""

import io
import re
from typing import Any


def svg(figure: Any) -> str:
    """Return a figure as an SVG element, and close it."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - takes a second, and is not needed to measure

    figure.tight_layout()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)
