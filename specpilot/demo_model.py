"""The folder of the demo model pair: in the checkout, beside the packages. A wheel does not contain it."""

from pathlib import Path

DEMO_MODEL = Path(__file__).resolve().parent.parent / "deploy" / "demo_model"
