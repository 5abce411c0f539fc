"""Every word of a metric, a label, a reason, a document's field or a log's field is in the glossary."""

import re
from dataclasses import fields
from pathlib import Path

from specpilot.controller.law.reason import Reason
from specpilot.policy.types import ClassPolicy, MatchRule, Policy, Schedule
from tests.unit.test_docs import documented_metrics

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs" / "concepts" / "glossary.md").read_text()
PLAIN = re.findall(
    r"\w+",
    "age at back better chars duration error errors for format has held id in issued least length like lines log max"
    " measured method min minimum most ms name no out per path predicted ratio read request requests response rolled"
    " s second seconds source status total unknown up valid version",
)
"""Words that mean in the code what they mean anywhere."""


def identifiers() -> set[str]:
    """Every name that operators read: metrics without their prefix, labels, reasons, fields of documents and logs."""
    metrics = documented_metrics()
    found = {re.sub(r"^specpilot_(engine|gateway|controller)_", "", name) for name in metrics}
    found |= {label for labels in metrics.values() for label in labels} - {"counter", "gauge", "histogram"}
    found |= {reason.value for reason in Reason}
    found |= {field.name for kind in (Policy, ClassPolicy, MatchRule, Schedule) for field in fields(kind)}
    log = (ROOT / "docs" / "reference" / "gateway.md").read_text().split("\n## Access log\n")[1].split("\n## ")[0]
    return found | set(re.findall(r"^\| `(\w+)` \|", log, re.MULTILINE))


def written() -> list[str]:
    return [name for row in re.findall(r"^\|[^|]+\|([^|]+)\|", GLOSSARY, re.MULTILINE) for name in row.split("`")[1::2]]


def test_every_word_of_an_identifier_is_explained() -> None:
    explained = {word for name in written() for word in name.split("_")}
    names = identifiers()
    assert len(names) > 100
    missing = {name: set(name.split("_")) - explained - set(PLAIN) for name in names}
    assert {name: words for name, words in missing.items() if words} == {}


def test_every_identifier_that_the_glossary_shows_is_part_of_a_real_one() -> None:
    names = identifiers()
    assert [shown for shown in written() if not any(shown in name for name in names)] == []
