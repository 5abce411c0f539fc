"""Seeded generator of structured requests and the JSON that answers them.

Owns: the entities, their fields and values. All of it is invented here; no real record is in it.
Keys are long and ordered, most values are constants from the prompt, counters or skewed choices, so a
reply is easy to draft; a few free numbers keep it from being certain.
A source is one (entity, set of fields): held out together, whatever the values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .conversation import Conversation, Message

Value = str | int | float | bool | None | list[str]
Field = Callable[[Random, int], Value]


def choice(*options: Value) -> Field:
    """The first option most of the time."""
    weights = [8, *([1] * (len(options) - 1))]
    return lambda random, _: random.choices(options, weights)[0]


def counter(prefix: str, start: int) -> Field:
    """An identifier that counts up from record to record."""
    return lambda _, index: f"{prefix}-{start + index}"


def number(low: int, high: int, decimals: int = 0) -> Field:
    """A free number."""
    return lambda random, _: round(random.uniform(low, high), decimals) if decimals else random.randint(low, high)


def minute(day: str) -> Field:
    """A time stamp, a quarter of an hour after the record before."""
    return lambda _, index: f"{day}T{8 + index // 4:02d}:{index % 4 * 15:02d}:00Z"


ENTITIES: dict[str, dict[str, Field]] = {
    "order": {
        "order_identifier": counter("order", 1001),
        "created_at": minute("2025-03-14"),
        "customer_status": choice("returning", "new"),
        "payment_method": choice("credit_card", "invoice", "bank_transfer"),
        "currency_code": choice("EUR", "USD"),
        "total_amount": number(10, 400, 2),
        "item_count": number(1, 9),
        "is_gift": choice(False, True),
        "shipping_country": choice("Germany", "France", "Japan"),
        "tracking_number": choice(None, "pending"),
    },
    "user account": {
        "user_identifier": counter("user", 501),
        "account_status": choice("active", "suspended", "invited"),
        "preferred_language": choice("en", "de", "fr"),
        "email_verified": choice(True, False),
        "two_factor_enabled": choice(False, True),
        "login_count": number(1, 90),
        "last_login_at": minute("2025-05-02"),
        "time_zone": choice("Europe/Berlin", "America/New_York"),
        "roles": choice(["reader"], ["reader", "editor"]),
    },
    "sensor reading": {
        "sensor_identifier": counter("sensor", 11),
        "measured_at": minute("2025-07-21"),
        "temperature_celsius": number(15, 30, 1),
        "relative_humidity": number(30, 70),
        "battery_level": choice("good", "low"),
        "calibration_required": choice(False, True),
        "signal_quality": choice("excellent", "fair"),
        "firmware_version": choice("2.4.1", "2.4.0"),
        "error_message": choice(None, "timeout"),
    },
    "calendar event": {
        "event_identifier": counter("event", 301),
        "starts_at": minute("2025-09-08"),
        "duration_minutes": choice(30, 45, 60),
        "event_title": choice("Weekly planning", "Design review", "Team lunch"),
        "meeting_room": choice("Room A", "Room B"),
        "is_recurring": choice(True, False),
        "attendee_count": number(2, 12),
        "response_status": choice("accepted", "tentative"),
    },
    "build job": {
        "job_identifier": counter("job", 7001),
        "pipeline_name": choice("nightly", "release"),
        "started_at": minute("2025-10-30"),
        "exit_code": choice(0, 1),
        "duration_seconds": number(20, 900),
        "runner_architecture": choice("x86_64", "arm64"),
        "cache_restored": choice(True, False),
        "failed_tests": choice([], ["test_login"]),
        "branch_name": choice("main", "develop"),
    },
    "library book": {
        "catalogue_number": counter("book", 4201),
        "shelf_location": choice("second floor", "archive"),
        "publication_year": number(1950, 2024),
        "is_available": choice(True, False),
        "loan_period_days": choice(28, 14),
        "language_code": choice("en", "es"),
        "page_count": number(90, 700),
        "condition_note": choice(None, "worn cover"),
        "reading_level": choice("adult", "children"),
    },
    "support ticket": {
        "ticket_identifier": counter("ticket", 9101),
        "opened_at": minute("2025-12-01"),
        "priority_level": choice("normal", "high", "urgent"),
        "assigned_team": choice("customer care", "billing"),
        "contact_channel": choice("email", "telephone"),
        "reply_count": number(0, 8),
        "is_resolved": choice(False, True),
        "satisfaction_score": choice(None, 4, 5),
        "product_area": choice("checkout", "search"),
    },
    "warehouse item": {
        "item_identifier": counter("item", 601),
        "warehouse_name": choice("north", "south"),
        "quantity_in_stock": number(0, 250),
        "reorder_threshold": choice(20, 50),
        "unit_of_measure": choice("piece", "box"),
        "unit_price": number(1, 90, 2),
        "is_discontinued": choice(False, True),
        "supplier_name": choice("Acme Trading", "Blue Harbour"),
        "last_counted_at": minute("2025-02-11"),
    },
}
REQUESTS = (
    "Return {count} {entity} records as JSON with the fields {fields}.",
    "I need a JSON list of {count} {entity} records. Use exactly these fields: {fields}.",
    "Generate {count} {entity} records in JSON. Each record has {fields}.",
    "Answer in JSON only. Give me {count} {entity} records with {fields}.",
)


@dataclass(frozen=True)
class Schema:
    """An entity and an ordered choice of its fields."""

    entity: str
    fields: tuple[str, ...]

    def source(self) -> str:
        """Name for the split."""
        return f"json:{self.entity}:{','.join(self.fields)}"


def draw_schema(random: Random) -> Schema:
    """Four to seven fields of one entity."""
    entity = random.choice(list(ENTITIES))
    names = list(ENTITIES[entity])
    fields = set(random.sample(names, random.randint(4, min(7, len(names)))))
    return Schema(entity, tuple(name for name in names if name in fields))


def draw_conversation(random: Random) -> Conversation:
    """One request and its answer."""
    schema = draw_schema(random)
    makers = ENTITIES[schema.entity]
    count = random.randint(2, 4)
    request = random.choice(REQUESTS).format(count=count, entity=schema.entity, fields=", ".join(schema.fields))
    fixed: dict[str, Value] = {}
    for name in random.sample(schema.fields, random.randint(0, 2)):
        value = makers[name](random, 0)
        if isinstance(value, str) and "-" not in value:
            fixed[name] = value
            request += f" Set {name} to {json.dumps(value)} in every record."
    offset = random.randint(0, 8)
    records = [
        {name: fixed.get(name, makers[name](random, index + offset)) for name in schema.fields}
        for index in range(count)
    ]
    reply = json.dumps(records, indent=2)
    return Conversation("json", schema.source(), (Message("user", request), Message("assistant", reply)))
