"""A name that the glossary shows is one of a metric, a label, a reason or a policy's field."""

import re
from dataclasses import fields
from pathlib import Path

from specpilot.controller.decision.reason import Reason
from specpilot.policy.model_policy import ClassPolicy, MatchRule, Policy
from specpilot.policy.schedule import Guidance, Schedule
from tests.unit.test_docs import documented_metrics

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs" / "concepts" / "glossary.md").read_text()


def identifiers() -> set[str]:
    """Metrics without their prefix, labels, reasons, and fields of documents."""
    metrics = documented_metrics()
    found = {re.sub(r"^specpilot_(engine|gateway|controller)_", "", name) for name in metrics}
    found |= {label for labels in metrics.values() for label in labels}
    found |= {reason.value for reason in Reason}
    return found | {
        field.name for kind in (Policy, ClassPolicy, MatchRule, Schedule, Guidance) for field in fields(kind)
    }


def test_every_name_that_the_glossary_shows_is_part_of_a_real_one() -> None:
    rows = re.findall(r"^\|[^|]+\|([^|]+)\|", GLOSSARY, re.MULTILINE)
    shown = [name for row in rows for name in row.split("`")[1::2]]
    names = identifiers()
    assert len(shown) > 30
    assert [name for name in shown if not any(name in known for known in names)] == []
