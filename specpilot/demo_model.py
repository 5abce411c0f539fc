"""The folder of the demo model pair: in the checkout, beside the packages. A wheel does not contain it."""

from pathlib import Path

DEMO_MODEL = Path(__file__).resolve().parent.parent / "deploy" / "demo_model"

DEMO_TARGET, DEMO_HEAD = DEMO_MODEL / "target", DEMO_MODEL / "peagle"
DEMO_HEADS = {"p-eagle": str(DEMO_HEAD), "eagle3": str(DEMO_MODEL / "eagle3"), "dflash": str(DEMO_MODEL / "dflash")}
"""The demo target's heads by name."""
MTP_DEMO = DEMO_MODEL / "mtp"
"""The demo target with an MTP head of its own."""
