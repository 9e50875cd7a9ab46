"""The text that the bundled model is trained and measured on: short messages and the records they hold.

A message is composed of interchangeable sentences (`phrases`) about drawn facts (`words`), with greetings, noise, second
names and second dates. A record asks for some of the facts, under drawn key names, in a drawn order, so that a reader has
to follow the keys and not a habit. Everything is drawn from one `random.Random`; the two parts of the words share nothing.
Left out: spelling mistakes, languages other than English, dates that need a calendar ("next Friday").
"""

import datetime
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.tiny import words
from scripts.tiny.phrases import CLOSINGS, FAMILIES, GENERIC, GREETINGS, LABELS, NOISE, Family

KINDS = tuple(FAMILIES)
CURRENCIES = ("EUR", "USD", "GBP", "JPY")
DUE_PATTERN = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
DEMO_FIELDS = (
    ("customer", "person"),
    ("city", "city"),
    ("item", "item"),
    ("quantity", "quantity"),
    ("price", "price"),
    ("currency", "currency"),
)
"""The demo's record: (key, fact), in order. Every message of `DEMO_KINDS` tells them all."""
DEMO_KINDS = ("order", "invoice", "shipment", "complaint", "quote")

_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_DATE = {"type": "string", "format": "date"}
_STRINGS = {"type": "array", "items": _STRING}

FACTS: dict[str, tuple[dict[str, Any], str]] = {
    "person": (_STRING, "name customer client full_name customer_name person buyer contact"),
    "city": (_STRING, "city town place location"),
    "item": (_STRING, "item product article goods item_name product_name"),
    "quantity": (_INTEGER, "quantity qty amount count number pieces units"),
    "price": ({"type": "number"}, "price total cost sum total_price"),
    "currency": ({"enum": list(CURRENCIES)}, "currency currency_code"),
    "due": (_DATE, "due due_date deadline date"),
    "dated": (_DATE, ""),
    "email": (_STRING, "email mail e_mail email_address"),
    "phone": (_STRING, "phone telephone tel phone_number mobile"),
    "company": (_STRING, "company firm organization organisation company_name"),
    "agent": (_STRING, "agent handled_by clerk employee"),
    "ref": (_STRING, "reference ref id"),
    "urgent": ({"type": "boolean"}, "urgent is_urgent"),
    "colour": (_STRING, "colour color"),
    "carrier": (_STRING, "carrier shipped_with courier"),
    "origin": (_STRING, "origin from_city sent_from"),
    "weight": ({"type": "number"}, "weight weight_kg kg"),
    "problem": (_STRING, "problem issue defect"),
    "resolution": ({"enum": ["refund", "replacement", "repair"]}, "resolution solution wanted"),
    "severity": ({"enum": ["low", "medium", "high"]}, "severity priority"),
    "time": (_STRING, "time hour start_time at"),
    "topic": (_STRING, "topic subject about title"),
    "room": (_STRING, "room"),
    "duration": (_INTEGER, "duration minutes duration_minutes"),
    "attendees": (_STRINGS, "attendees guests participants"),
    "role": (_STRING, "role position job job_title"),
    "years": (_INTEGER, "years experience years_of_experience"),
    "skills": (_STRINGS, "skills"),
    "salary": (_INTEGER, "salary expected_salary"),
    "age": (_INTEGER, "age"),
}
"""Fact -> (JSON Schema of its value, key names that ask for it in every kind of message)."""

_KEYS_BY_KIND: dict[str, dict[str, str]] = {
    "order": {
        "due": "delivery_date deliver_by delivery",
        "dated": "order_date ordered ordered_on",
        "ref": "order_id order_number order_no",
    },
    "invoice": {
        "due": "payment_due pay_by payment_date",
        "dated": "invoice_date issued issue_date",
        "ref": "invoice_id invoice_number invoice_no",
    },
    "shipment": {
        "person": "recipient",
        "due": "arrival arrival_date delivery_date expected",
        "dated": "shipped ship_date shipped_on",
        "ref": "tracking tracking_id tracking_number",
        "city": "destination",
    },
    "complaint": {
        "due": "answer_by reply_by",
        "dated": "bought purchase_date bought_on",
        "ref": "order_id order_number",
    },
    "quote": {"due": "answer_by offer_by", "ref": "request_id request_number"},
    "meeting": {"person": "host organizer organiser", "due": "day meeting_date when"},
    "application": {
        "person": "applicant candidate",
        "due": "start_date start available_from",
        "ref": "job_id job_number",
    },
}
_DATED_LABELS = {
    "order": ("Order date", "Ordered on"),
    "invoice": ("Invoice date", "Issued on"),
    "shipment": ("Shipped on", "Sent on"),
    "complaint": ("Bought on", "Date of purchase"),
}
_PERSON_LABELS = {
    "shipment": ("Recipient", "Customer", "Name"),
    "meeting": ("Host", "Organiser", "Name"),
    "application": ("Name", "Candidate", "Applicant"),
}
_GROUPS = (
    ("customer client buyer", ("person", "city", "email", "phone")),
    ("contact", ("person", "email", "phone")),
    ("total price payment cost", ("price", "currency")),
    ("delivery shipping", ("city", "due")),
)
_GROUP_KEYS = {"price": "amount value price", "person": "name full_name", "due": "date due"}
_THIRD_PERSON = ("invoice", "shipment", "meeting")
_SIGN_OFFS = ("Regards", "Best wishes", "Yours", "Kind regards", "Thanks,")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥"}
_CURRENCY_WORDS = {"EUR": "euros", "USD": "dollars", "GBP": "pounds", "JPY": "yen"}
_MONTHS = [datetime.date(2000, month, 1).strftime("%B") for month in range(1, 13)]


@dataclass(frozen=True, slots=True)
class Message:
    """A message and what it says.

    Args:
        text: The message.
        kind: One of `KINDS`.
        facts: Fact -> JSON value; `items`, a list of item and quantity, is there when more than one thing is named.
        absent: Facts that such a message could tell and this one does not.
    """

    text: str
    kind: str
    facts: Mapping[str, Any]
    absent: tuple[str, ...]

    @property
    def due(self) -> str:
        """The ISO date at which something is due."""
        return str(self.facts["due"])


@dataclass(frozen=True, slots=True)
class Task:
    """A record that is asked for.

    Args:
        name: `demo` or the shape of the schema: `flat`, `nested`, `array`.
        schema: The JSON Schema, keys in the order of the record.
        record: The right answer.
    """

    name: str
    schema: dict[str, Any]
    record: dict[str, Any]

    @property
    def text(self) -> str:
        """The record as compact JSON."""
        return json.dumps(self.record, ensure_ascii=False, separators=(",", ":"))


def _date_text(rng: random.Random, date: datetime.date) -> str:
    """Return `date` as people write it; a little more than half are ISO dates."""
    month = _MONTHS[date.month - 1]
    shape = rng.random()
    if shape < 0.5:
        return date.isoformat()
    if shape < 0.66:
        return f"{date.day} {month} {date.year}"
    if shape < 0.82:
        return f"{month} {date.day}, {date.year}"
    if shape < 0.94:
        return f"{date.day:02d}.{date.month:02d}.{date.year}"
    if shape < 0.97:
        return f"{date.day} {month[:3]} {date.year}"
    return f"{date.day:02d} {month} {date.year}"


def _price(rng: random.Random) -> float | int:
    whole = rng.randint(0, 10 ** rng.choice((1, 2, 2, 3, 3, 4)))
    if rng.random() < 0.4:
        return whole + 1
    return round(whole + rng.randint(1, 99) / 100, 2)


def _money_text(rng: random.Random, price: float | int, currency: str) -> str:
    digits = f"{price:,.2f}" if isinstance(price, float) else f"{price:,}"
    if rng.random() < 0.75:
        digits = digits.replace(",", "")
    if isinstance(price, int) and rng.random() < 0.2:
        digits += ".00"
    shape = rng.random()
    if shape < 0.5:
        return f"{digits} {currency}"
    if shape < 0.64:
        return f"{currency} {digits}"
    if shape < 0.78:
        return f"{_SYMBOLS[currency]}{digits}"
    if shape < 0.83:
        return f"{digits} {_SYMBOLS[currency]}"
    return f"{digits} {_CURRENCY_WORDS[currency]}"


def _quantity(rng: random.Random) -> int:
    return rng.randint(1, rng.choice((1, 5, 12, 12, 40, 99, 99, 999)))


def _goods_text(rng: random.Random, source: words.WordSource) -> tuple[str, str, int]:
    """Return goods as a message names them, the item in the same spelling, and the quantity."""
    quantity = _quantity(rng)
    shape = rng.random()
    plural = quantity > 1 and (shape < 0.5 or rng.random() < 0.3)
    item = source.item(rng, plural)
    if shape < 0.36:
        number = str(quantity)
        if quantity == 1 and rng.random() < 0.6:
            number = rng.choice(("one", "an" if item[0].lower() in "aeiou" else "a"))
    elif shape < 0.5:
        number = _NUMBERS[quantity - 1] if quantity <= 12 else str(quantity)
    else:
        patterns = "{q} x {i}|{q}x {i}|{q} pieces of {i}|{q} units of {i}|{q} pcs {i}|{i} x {q}|{i} ({q} pieces)"
        pattern = rng.choice((patterns + "|{q} x {i}|{i} (quantity {q})|{q} of the {i}|{i}, {q} pieces").split("|"))
        return pattern.format(q=quantity, i=item), item, quantity
    return f"{number} {item}", item, quantity


def _reference(rng: random.Random) -> str:
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.choice((1, 2, 2, 3, 3))))
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(2, 7)))
    return rng.choice(("{l}-{d}", "{l}{d}", "{d}", "{d}", "{l}-{d}-{e}", "{d}/{e}", "{l} {d}", "{d}{l}")).format(
        l=letters, d=digits, e=rng.randint(1, 99)
    )


def _phone(rng: random.Random) -> str:
    groups = [str(rng.randint(10 ** (n - 1), 10**n - 1)) for n in rng.choices((2, 3, 3, 4), k=rng.randint(2, 4))]
    prefix = rng.choice(("+{n} ", "+{n} ", "0", "(0{n}) ", "")).format(n=rng.randint(1, 99))
    return prefix + rng.choice((" ", " ", "-", "")).join(groups)


def _ascii(word: str) -> str:
    return re.sub("[^a-z]", "", word.lower()) or "x"


def _email(rng: random.Random, source: words.WordSource, person: str) -> str:
    parts = [_ascii(word) for word in person.split()]
    name = rng.choice((".".join((parts[0], parts[-1])), parts[0][0] + parts[-1], parts[-1], "info", "office", parts[0]))
    if rng.random() < 0.15:
        name += str(rng.randint(1, 99))
    domain = rng.choice(("example", "mail", "post", _ascii(source.made_up(rng, 2)), _ascii(source.made_up(rng, 2))))
    return f"{name}@{domain}.{rng.choice(('com', 'org', 'net', 'de', 'eu', 'pt', 'co.uk', 'fr', 'io'))}"


def _join(parts: Sequence[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    return ", ".join(parts[:-1]) + " and " + parts[-1]


class MessageSource:
    """Draws messages from one part of the words.

    Args:
        held_out: Whether to use the names, places and things that training never shows.
    """

    def __init__(self, held_out: bool = False) -> None:
        self._words = words.WordSource(held_out)

    def draw(self, rng: random.Random, kind: str | None = None, complete: bool = False) -> Message:
        """Return one message.

        Args:
            rng: Where everything is drawn from.
            kind: The kind of message; None draws one.
            complete: Name exactly one thing and leave out no mandatory fact, as the demo's record needs it.
        """
        kind = kind or rng.choice(KINDS)
        facts, surface = self._facts(rng, kind, complete)
        family = FAMILIES[kind]
        shape = rng.random()
        if shape < 0.8:
            text, told = self._prose(rng, kind, family, surface, complete)
        else:
            text, told = _labelled(rng, kind, family, surface, complete, with_labels=shape < 0.95)
        names = _told_facts(told, facts)
        absent = tuple(fact for fact in (*family.mandatory, *family.extras) if fact not in told and fact in FACTS)
        kept = {name: value for name, value in facts.items() if name in names}
        kept["urgent"] = "urgent" in told
        return Message(text, kind, kept, tuple(fact for fact in absent if fact != "urgent"))

    def _facts(self, rng: random.Random, kind: str, complete: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """Return every fact that a message of `kind` may tell, and how it would be spelled."""
        source = self._words
        due = datetime.date(rng.randint(2018, 2039), 1, 1) + datetime.timedelta(days=rng.randint(0, 364))
        dated = due - datetime.timedelta(days=rng.randint(1, 90))
        noise_date = due + datetime.timedelta(days=rng.randint(-200, 60) or 1)
        price, currency, person = _price(rng), rng.choice(CURRENCIES), source.person(rng)
        skills = rng.sample(words.SKILLS, rng.randint(1, 4))
        attendees = [source.person(rng) for _ in range(rng.randint(1, 3))]
        salary = rng.randint(15, 120) * 500 * rng.choice((1, 2))
        facts: dict[str, Any] = {
            "person": person,
            "city": source.city(rng),
            "price": price,
            "currency": currency,
            "due": due.isoformat(),
            "dated": dated.isoformat(),
            "email": _email(rng, source, person),
            "phone": _phone(rng),
            "company": source.company(rng),
            "agent": source.person(rng),
            "ref": _reference(rng),
            "colour": rng.choice(words.COLOURS),
            "carrier": rng.choice(words.CARRIERS),
            "origin": source.city(rng),
            "weight": rng.choice((rng.randint(1, 60), rng.randint(1, 400) / 10)),
            "problem": rng.choice(words.PROBLEMS),
            "resolution": rng.choice(("refund", "replacement", "repair")),
            "severity": rng.choice(("low", "medium", "high")),
            "time": f"{rng.randint(7, 19):02d}:{rng.choice((0, 15, 30, 45, rng.randint(0, 59))):02d}",
            "topic": rng.choice(words.TOPICS),
            "room": rng.choice((f"{rng.choice('ABCDEFG')}{rng.randint(1, 40)}", str(rng.randint(1, 420)))),
            "duration": rng.choice((15, 20, 30, 40, 45, 60, 75, 90, 120)),
            "attendees": attendees,
            "role": rng.choice(words.ROLES),
            "years": rng.randint(1, 30),
            "skills": skills,
            "salary": salary,
            "age": rng.randint(18, 66),
        }
        surface = {name: str(value) for name, value in facts.items()}
        surface |= {
            "due": _date_text(rng, due),
            "dated": _date_text(rng, dated),
            "noise_date": _date_text(rng, noise_date),
            "noise_person": source.person(rng),
            "noise_city": source.city(rng),
            "noise_ref": _reference(rng),
            "money": _money_text(rng, price, currency),
            "skills": _join(skills),
            "attendees": _join(attendees),
            "salary_money": _money_text(rng, salary, currency),
        }
        if kind in DEMO_KINDS:
            self._add_goods(rng, facts, surface, complete)
        return facts, surface

    def _add_goods(self, rng: random.Random, facts: dict[str, Any], surface: dict[str, str], complete: bool) -> None:
        count = 1 if complete or rng.random() < 0.96 else rng.randint(2, 3)
        goods = [_goods_text(rng, self._words) for _ in range(count)]
        surface["goods"] = _join([text for text, _, _ in goods])
        if count == 1:
            _, facts["item"], facts["quantity"] = goods[0]
            surface |= {"item": facts["item"], "quantity": str(facts["quantity"])}
        facts["items"] = [(item, quantity) for _, item, quantity in goods]

    def _prose(
        self, rng: random.Random, kind: str, family: Family, surface: Mapping[str, str], complete: bool
    ) -> tuple[str, set[str]]:
        """Return a message in sentences and the slots that it tells."""
        core = rng.choice(family.cores)
        told = _slots(core)
        omitted = (
            set() if complete else {f for f in family.mandatory if f not in ("due", "goods") and rng.random() < 0.05}
        )
        missing = set(family.mandatory) - told - omitted
        sentences = []
        while missing:
            template = rng.choice(_sentences_for(kind, family, missing))
            sentences.append(template)
            missing -= _slots(template)
            told |= _slots(template)
        for fact in rng.sample(family.extras, min(len(family.extras), rng.choice((0, 0, 1, 1, 2, 2, 3, 4)))):
            name = "not_urgent" if fact == "urgent" and rng.random() < 0.4 else fact
            template = rng.choice(_pool(kind, family, name))
            sentences.append(template)
            told |= _slots(template) | ({name} if fact == "urgent" else set())
        rng.shuffle(sentences)
        sentences.insert(0 if rng.random() < 0.7 else rng.randint(0, len(sentences)), core)
        return _assemble(rng, sentences, surface), told


def _slots(template: str) -> set[str]:
    return set(re.findall(r"{(\w+)}", template))


def _told_facts(told: set[str], facts: Mapping[str, Any]) -> set[str]:
    names = set(told)
    if "goods" in told:
        names |= {"item", "quantity", "items"}
    if "item" in told and "quantity" in told:
        names.add("items")
    if "money" in told:
        names |= {"price", "currency"}
    if "salary_money" in told:
        names |= {"salary", "currency"}
    return {name for name in names if name in facts}


def _pool(kind: str, family: Family, name: str) -> tuple[str, ...]:
    """Return the sentences that tell `name` in messages of `kind`."""
    own = family.sentences.get(name, ())
    if kind in _THIRD_PERSON and (own or " " in name):
        return own
    return own + GENERIC.get(name, ())


def _sentences_for(kind: str, family: Family, missing: set[str]) -> list[str]:
    """Return the sentences that tell only missing facts; those that tell two of them stand twice."""
    found: list[str] = []
    for name in {*family.sentences, *GENERIC}:
        parts = set(name.split())
        if parts <= missing:
            found += _pool(kind, family, name) * len(parts)
    return sorted(found)


def _assemble(rng: random.Random, sentences: list[str], surface: Mapping[str, str]) -> str:
    """Return the sentences as a message, with greeting, noise, closing and signature."""
    signature = [s for s in sentences if s.startswith(_SIGN_OFFS)]
    body = [s for s in sentences if not s.startswith(_SIGN_OFFS)]
    num_noise = rng.choices((0, 1, 2, 3, 5, rng.randint(6, 30)), (56, 24, 11, 5, 3, 1))[0]
    for noise in rng.sample(NOISE, min(num_noise, len(NOISE))):
        body.insert(rng.randint(0, len(body)), noise)
    parts = ([rng.choice(GREETINGS)] if rng.random() < 0.4 else []) + body
    if signature:
        parts += signature
    elif rng.random() < 0.4:
        parts.append(rng.choice(CLOSINGS))
    text = ""
    glue = rng.choices((" ", "\n", "mixed"), (78, 8, 14))[0]
    for part in parts:
        joint = (" ", "\n")[rng.random() < 0.3] if glue == "mixed" else glue
        text += (joint if text else "") + part.format_map(surface)
    return text


def _labelled(
    rng: random.Random, kind: str, family: Family, surface: Mapping[str, str], complete: bool, with_labels: bool
) -> tuple[str, set[str]]:
    """Return a message as a list of labels and values, or of values alone, and the slots that it tells."""
    names = [name for name in family.mandatory if complete or name in ("due", "goods") or rng.random() > 0.05]
    if with_labels:
        extras = [name for name in family.extras if name in LABELS or name == "dated"]
        names += rng.sample(extras, min(len(extras), rng.choice((0, 1, 1, 2, 3))))
    if "goods" in names and "item" in surface and with_labels and rng.random() < 0.7:
        names[names.index("goods") : names.index("goods") + 1] = rng.sample(("item", "quantity"), 2)
    if with_labels and rng.random() < 0.5:
        rng.shuffle(names)
    told = set(names)
    lines = []
    for name in names:
        if name == "urgent":
            value = rng.choice(("yes", "no"))
            told -= {"urgent"} if value == "no" else set()
        else:
            value = _labelled_value(rng, name, surface)
        show = with_labels or (name in ("due", "dated", "years") and rng.random() < 0.8)
        lines.append(f"{_label(rng, kind, family, name)}: {value}" if show else value)
    title = rng.choice(family.titles)
    joint = rng.choice(("\n", "\n", "\n", "; ", " | ", ". ", ", "))
    start = title + rng.choice(("\n", ": ", "\n\n", " - "))
    text = start + joint.join(lines)
    if rng.random() < 0.15:
        text += "\n" + rng.choice(NOISE).format_map(surface)
    return text, told


def _labelled_value(rng: random.Random, name: str, surface: Mapping[str, str]) -> str:
    if name == "ref" and rng.random() < 0.3:
        return "#" + surface[name]
    return surface[name]


def _label(rng: random.Random, kind: str, family: Family, name: str) -> str:
    if name == "due":
        return rng.choice(family.due_labels)
    if name == "dated":
        return rng.choice(_DATED_LABELS[kind])
    if name == "person" and kind in _PERSON_LABELS:
        return rng.choice(_PERSON_LABELS[kind])
    return rng.choice(LABELS[name])


def demo_task(message: Message) -> Task:
    """Return the demo's record of a complete message of one of `DEMO_KINDS`."""
    record = {key: message.facts[fact] for key, fact in DEMO_FIELDS}
    return Task("demo", _object({key: FACTS[fact][0] for key, fact in DEMO_FIELDS}), record)


def draw_task(rng: random.Random, message: Message) -> Task:
    """Return a record of drawn facts of `message`, under drawn names, in a drawn order."""
    builder = _TaskBuilder(rng, message)
    shape = rng.random()
    if shape < 0.12:
        builder.add_group()
    if "items" in message.facts and ("item" not in message.facts or rng.random() < 0.05):
        builder.add_items()
    names = [name for name in message.facts if name in FACTS and (name != "urgent" or rng.random() < 0.25)]
    rng.shuffle(names)
    for name in names[: rng.choice((1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 8, 9))]:
        builder.add(name, nullable=rng.random() < 0.1)
    if rng.random() < 0.15 and message.absent:
        for name in rng.sample(message.absent, min(len(message.absent), rng.randint(1, 2))):
            builder.add(name, nullable=True)
    return builder.build()


class _TaskBuilder:
    """Collects (key, schema, value) triples with distinct keys for one message."""

    def __init__(self, rng: random.Random, message: Message) -> None:
        self._rng = rng
        self._message = message
        self._used: set[str] = set()
        self._entries: list[tuple[str, dict[str, Any], Any]] = []
        self._name = "flat"

    def add(self, fact: str, nullable: bool) -> None:
        """Ask for a fact; it is null when the message does not tell it."""
        if fact in self._used:
            return
        self._used.add(fact)
        schema = FACTS[fact][0]
        if nullable:
            schema = {"anyOf": [schema, {"type": "null"}]}
        self._append(self._keys(fact), schema, self._message.facts.get(fact))

    def add_group(self) -> None:
        """Ask for two or more facts inside an object."""
        outer, facts = self._rng.choice(_GROUPS)
        inside = [fact for fact in facts if fact in self._message.facts]
        if len(inside) < 2:
            return
        inside = self._rng.sample(inside, self._rng.randint(2, len(inside)))
        keys = {fact: self._rng.choice(_GROUP_KEYS.get(fact, FACTS[fact][1]).split()) for fact in inside}
        schema = _object({keys[fact]: FACTS[fact][0] for fact in inside})
        self._append(outer.split(), schema, {keys[fact]: self._message.facts[fact] for fact in inside})
        self._used |= set(inside)
        self._name = "nested"

    def add_items(self) -> None:
        """Ask for all goods, as an array of objects."""
        item = self._rng.choice(FACTS["item"][1].split())
        quantity = self._rng.choice(FACTS["quantity"][1].split())
        names = self._rng.sample((item, quantity), 2)
        schema = _object({name: FACTS["item" if name == item else "quantity"][0] for name in names})
        rows = [{n: row[0] if n == item else row[1] for n in names} for row in self._message.facts["items"]]
        if self._rng.random() < 0.15:
            schema, rows = _STRING, [row[item] for row in rows]
        self._append(("items", "products", "articles", "lines", "goods"), {"type": "array", "items": schema}, rows)
        self._used |= {"item", "quantity"}
        self._name = "array"

    def build(self) -> Task:
        """Return the task; a message without any drawn fact is asked for its due date."""
        if not self._entries:
            self.add("due", nullable=False)
        self._rng.shuffle(self._entries)
        schema = _object({key: schema for key, schema, _ in self._entries})
        return Task(self._name, schema, {key: value for key, _, value in self._entries})

    def _keys(self, fact: str) -> list[str]:
        keys = FACTS[fact][1].split()
        own = _KEYS_BY_KIND.get(self._message.kind, {}).get(fact, "").split()
        if fact == "due" and "dated" in self._message.facts:
            keys.remove("date")
        return keys + own * (2 if keys else 1)

    def _append(self, keys: Sequence[str], schema: dict[str, Any], value: Any) -> None:
        taken = {key for key, _, _ in self._entries}
        free = [key for key in keys if key not in taken]
        if free:
            self._entries.append((self._rng.choice(free), schema, value))


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
