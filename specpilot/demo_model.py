"""Where the demo model pair lies: in the checkout, beside the packages. A wheel does not carry it."""

from pathlib import Path

DEMO_MODEL = Path(__file__).resolve().parent.parent / "deploy" / "demo_model"
