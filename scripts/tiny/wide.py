"""Messages in many styles, and the records asked of them: `WideSource`, `reading_task`, `wide_task`.

Where `corpus` composes neat sentences, these are informal or wordy, misspelt, in small letters, with emoji, between heads of
mails, as lists; facts are left out more often; and some messages are of kind `other`, whose records are empty. What a message
does not tell is null, or an empty text or zero where null is not asked for.
"""

import datetime
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scripts.tiny import corpus, styles, wide_phrases, words
from scripts.tiny.corpus import FACTS, Message, MessageSource, Task
from scripts.tiny.names import NameSource
from scripts.tiny.others import other_text
from scripts.tiny.phrases import FAMILIES, LABELS, NOISE, Family

OTHER = "other"
"""The kind of messages that are none of `KINDS`."""
KIND_WEIGHTS = {
    "order": 5,
    "invoice": 4,
    "shipment": 4,
    "complaint": 4,
    "quote": 4,
    "meeting": 1.5,
    "application": 1.5,
    OTHER: 3.5,
}
READING_FIELDS = (*corpus.DEMO_FIELDS, ("due", "due"))
OMITTED_SHARE = 0.12
"""Share of the facts of a kind that a message does not tell."""
SPARSE_SHARE = 0.15
"""Share of the messages that tell few facts: the goods and about one in three of the others."""
EMPTY_SHARE = 0.08
"""Share of records in which what is not told is an empty text or zero instead of null."""

_TEENS = ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
_NUMBER_WORDS = dict(enumerate((*corpus._NUMBERS, *_TEENS), start=1))
_NUMBER_WORDS |= {2: "two|a pair of|a couple of", 6: "six|half a dozen", 12: "twelve|a dozen|one dozen"}
_NUMBER_WORDS |= {24: "two dozen|twenty-four"}
_NUMBER_WORDS |= {25: "twenty-five", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 100: "a hundred|one hundred"}
_MONEY_WORDS = {
    "EUR": "euro euros Euro Euros EURO Eur eur €",
    "USD": "dollars US$ bucks usd dollar US-Dollars $",
    "GBP": "pounds quid gbp pound £ sterling",
    "JPY": "yen jpy Yen ¥ JPY",
}
_MONEY_SIGNS = {"EUR": "€ |€|EUR ", "USD": "$|US$|$ |USD ", "GBP": "£|£ |GBP ", "JPY": "¥|¥ |JPY |JP¥"}
_LABELS = {
    "person": "Who|For|Person|Client|Name|Customer|Contact",
    "city": "Where|Place|To|City|Ship to|Town",
    "goods": "What|Goods|Things|Content",
    "item": "What|Thing|Item|Product|Article",
    "quantity": "Qty|How many|Pieces|Pcs|Number|x",
    "money": "Sum|Cost|Price|Money|Value|Total",
    "due": "When|By|Until|Date|Deadline|Due",
}
_ENUMERATED = ("currency", "resolution", "severity")


def _date_text(rng: random.Random, date: datetime.date) -> str:
    """Return a date in one of many forms; of two numbers the day is the first."""
    month, day, year = date.strftime("%B"), date.day, date.year
    short = month[:4] if month == "September" and rng.random() < 0.5 else month[:3]
    ending = "th" if 10 < day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return rng.choice(
        (
            *(date.isoformat() for _ in range(10)),
            *(f"{day} {month} {year}" for _ in range(3)),
            *(f"{month} {day}, {year}" for _ in range(2)),
            *(f"{day:02d}.{date.month:02d}.{year}" for _ in range(2)),
            f"{short} {day}, {year}",
            f"{day} {short} {year}",
            f"{day} {short}. {year}",
            f"{day}{ending} {month} {year}",
            f"{month} {day}{ending}, {year}",
            f"{month} {day} {year}",
            f"the {day}{ending} of {month} {year}",
            f"{day}. {month} {year}",
            f"{day}.{date.month}.{year}",
            f"{day:02d}/{date.month:02d}/{year}",
            f"{day:02d}-{date.month:02d}-{year}",
            f"{year}/{date.month:02d}/{day:02d}",
            f"{day}.{date.month}.{year % 100:02d}" if year % 100 > 31 else f"{day} {month} {year}",
            f"{date.strftime('%A')}, {day} {month} {year}",
            f"{date.strftime('%a')} {day} {short} {year}",
        )
    )


def _price(rng: random.Random, currency: str) -> float | int:
    """Return a price; one in three is of a thousand or more, and most of those in yen have five digits or six."""
    if currency == "JPY" and rng.random() < 0.6:
        return rng.randint(10, 6000) * rng.choice((10, 100, 100))
    whole = (
        rng.randint(1, 10 ** rng.choice((2, 3, 3)))
        if rng.random() < 0.65
        else rng.randint(1000, 10 ** rng.choice((4, 4, 5)))
    )
    return whole if rng.random() < 0.5 else round(whole + rng.randint(1, 99) / 100, 2)


def _money_text(rng: random.Random, price: float | int, currency: str) -> str:
    """Return a price in one of many forms, now and then with a comma before the cents."""
    digits = f"{price:,.2f}" if isinstance(price, float) else f"{price:,}"
    if isinstance(price, int) and rng.random() < 0.25:
        digits += ".00"
    shape = rng.random()
    if shape < 0.5:
        digits = digits.replace(",", "")
    elif shape < 0.65 and "." in digits:
        digits = digits.replace(",", rng.choice(("", "~", " "))).replace(".", ",").replace("~", ".")
    if rng.random() < 0.3:
        return rng.choice(_MONEY_SIGNS[currency].split("|")) + digits
    unit = currency if rng.random() < 0.5 else rng.choice(_MONEY_WORDS[currency].split())
    return f"{digits}{'' if rng.random() < 0.08 else ' '}{unit}"


def _goods_text(rng: random.Random, source: words.WordSource) -> tuple[str, str, int]:
    """Return goods as a message names them, the item in the same spelling, and the quantity."""
    quantity = rng.choice((1, rng.randint(1, 9), rng.randint(2, 20), rng.randint(2, 60), rng.randint(2, 300)))
    item = source.item(rng, plural=quantity > 1 and rng.random() < 0.9)
    number = str(quantity)
    shape = rng.random()
    if quantity == 1 and shape < 0.7:
        article = "an" if item[0].lower() in "aeiou" else "a"
        number = rng.choice((article, article, "one", "my", "the", "this", "our", "one single", "just one", "ONE"))
    elif quantity in _NUMBER_WORDS and shape < 0.4:
        number = rng.choice(_NUMBER_WORDS[quantity].split("|"))
    if shape < 0.75:
        text = f"{number} {item}"
    elif shape < 0.83:
        text = f"{rng.choice(('the', 'your', 'our', 'those', 'all', 'exactly', 'about', 'these'))} {number} {item}"
        text = f"{number} {item}" if quantity == 1 else text
    else:
        patterns = words.by_bar(
            "{q}x {i}|{q} x {i}|{q} pcs {i}|{q} pcs. {i}|{q} pieces {i}|{q} of your {i}|{q} of the {i}|{i} x{q}|{i} x {q}|"
            "{q} units of {i}|{i} ({q})|{i}: {q}|{i}, {q} of them|{i} - {q} pcs|{q}pcs {i}|{q} pieces of {i}|{i} (qty {q})|{q} * {i}"
        )
        text = rng.choice(patterns).format(q=quantity, i=item)
    return text, item, quantity


class WideSource(MessageSource):
    """Draws messages in many styles from one part of the words.

    Args:
        held_out: Whether to use the names and places that training never shows.
    """

    def __init__(self, held_out: bool = False) -> None:
        self._words = NameSource(held_out)

    def draw(self, rng: random.Random, kind: str | None = None, complete: bool = False) -> Message:
        """Return one message, as `MessageSource.draw` does; its kind may be `other`."""
        kind = kind or rng.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))[0]
        if kind == OTHER:
            return self._other(rng)
        facts, surface = self._facts(rng, kind, complete)
        family = wide_phrases.WIDE_FAMILIES[kind]
        if rng.random() < 0.82:
            text, told = self._prose(rng, kind, family, surface, complete)
        else:
            text, told = _list(rng, kind, family, surface, complete)
        if rng.random() < 0.12:
            text = self._framed(rng, text, kind, family, surface, told)
        told |= {"person"} if surface["person"] in text else set()
        names = corpus._told_facts(told, facts)
        kept = {name: value for name, value in facts.items() if name in names}
        text, kept = _recased(rng, text, kept)
        absent = tuple(f for f in (*family.mandatory, *family.extras) if f not in told and f in FACTS and f != "urgent")
        if "money" in family.mandatory and "money" not in told:
            absent += ("price", "currency")
        kept["urgent"] = "urgent" in told
        return Message(text, kind, kept, absent)

    def _other(self, rng: random.Random) -> Message:
        _, surface = self._facts(rng, "order", complete=True)
        text = other_text(rng, surface, self._words)
        if rng.random() < 0.15:
            text = " ".join(styles.with_emoji(rng, [text]))
        if rng.random() < 0.08:
            text = styles.framed(
                rng, text, surface["noise_person"], surface["company"], rng.choice(("hi", "re: hello", "news", "?"))
            )
        text, _ = _recased(rng, text, {})
        return Message(text, OTHER, {}, tuple(fact for fact in FACTS if fact != "urgent"))

    def _facts(self, rng: random.Random, kind: str, complete: bool) -> tuple[dict[str, Any], dict[str, str]]:
        facts, surface = super()._facts(rng, kind, complete)
        facts["price"] = _price(rng, facts["currency"])
        noise = datetime.date.fromisoformat(facts["due"]) - datetime.timedelta(days=rng.randint(1, 500))
        surface |= {
            "due": _date_text(rng, datetime.date.fromisoformat(facts["due"])),
            "dated": _date_text(rng, datetime.date.fromisoformat(facts["dated"])),
            "noise_date": _date_text(rng, noise),
            "money": _money_text(rng, facts["price"], facts["currency"]),
            "noise_goods": _goods_text(rng, self._words)[0],
            "noise_company": self._words.company(rng),
            "noise_number": str(rng.randint(2, 60)),
        }
        return facts, surface

    def _add_goods(self, rng: random.Random, facts: dict[str, Any], surface: dict[str, str], complete: bool) -> None:
        count = 1 if complete or rng.random() < 0.97 else rng.randint(2, 3)
        goods = [_goods_text(rng, self._words) for _ in range(count)]
        surface["goods"] = corpus._join([text for text, _, _ in goods])
        if count == 1:
            _, facts["item"], facts["quantity"] = goods[0]
            surface |= {"item": facts["item"], "quantity": str(facts["quantity"])}
        facts["items"] = [(item, quantity) for _, item, quantity in goods]
        if rng.random() < 0.04:
            surface["goods"] += " " + styles.emoji(rng)

    def _prose(
        self, rng: random.Random, kind: str, family: Family, surface: Mapping[str, str], complete: bool
    ) -> tuple[str, set[str]]:
        core = styles.expanded(rng, rng.choice(family.cores if rng.random() < 0.72 else FAMILIES[kind].cores))
        told = corpus._slots(core)
        omitted = set() if complete else _omitted(rng, family)
        missing = set(family.mandatory) - told - omitted
        sentences = []
        while missing:
            template = styles.expanded(rng, _sentence_for(rng, kind, family, missing))
            sentences.append(template)
            missing -= corpus._slots(template)
            told |= corpus._slots(template)
        if "due" not in told and rng.random() < 0.4:
            sentences.append(styles.expanded(rng, rng.choice(wide_phrases.NO_DATE)))
        for fact in rng.sample(family.extras, min(len(family.extras), rng.choice((0, 0, 0, 0, 1, 1, 2)))):
            name = "not_urgent" if fact == "urgent" and rng.random() < 0.4 else fact
            if pool := _pool(kind, family, name):
                template = styles.expanded(rng, rng.choice(pool))
                sentences.append(template)
                told |= corpus._slots(template) | ({name} if fact == "urgent" else set())
        greetings = wide_phrases.GREETINGS
        if kind in ("invoice", "shipment"):  # who is greeted there is the customer
            greetings = tuple(text for text in greetings if "{noise_person}" not in text)
        return _written(rng, core, sentences, greetings, surface), told

    def _framed(
        self, rng: random.Random, text: str, kind: str, family: Family, surface: Mapping[str, str], told: set[str]
    ) -> str:
        """Return a message inside a frame, which may tell who writes."""
        writes = kind in ("order", "complaint", "quote", "application")
        sender = surface["person" if writes else "noise_person"]
        subject = rng.choice(
            (rng.choice(family.titles), "hello", "question", "Re: Re: " + rng.choice(("yesterday", "your mail", "hi")))
        )
        return styles.framed(rng, text, sender, surface["company" if "company" in told else "noise_company"], subject)


def _omitted(rng: random.Random, family: Family) -> set[str]:
    """Return mandatory facts that a message leaves out, never the goods."""
    share = 0.65 if rng.random() < SPARSE_SHARE else OMITTED_SHARE
    return {fact for fact in family.mandatory if fact != "goods" and rng.random() < share}


def _pool(kind: str, family: Family, name: str) -> tuple[str, ...]:
    own = family.sentences.get(name, ())
    if kind in corpus._THIRD_PERSON and (own or " " in name):
        return own
    return own + wide_phrases.GENERIC.get(name, ()) + corpus.GENERIC.get(name, ())


def _sentence_for(rng: random.Random, kind: str, family: Family, missing: set[str]) -> str:
    """Return a sentence that tells only missing facts, of those that tell most a little more often."""
    names = [name for name in {**family.sentences, **wide_phrases.GENERIC} if set(name.split()) <= missing]
    names = [name for name in sorted(names) if _pool(kind, family, name)]
    name = rng.choices(names, [1.0 if " " in name else 1.5 for name in names])[0]
    return rng.choice(_pool(kind, family, name))


def _written(
    rng: random.Random, core: str, sentences: list[str], greetings: Sequence[str], surface: Mapping[str, str]
) -> str:
    """Return a core and sentences as a message, with stories, noise, greeting and closing, in one style."""
    rng.shuffle(sentences)
    body = list(sentences)
    body.insert(0 if rng.random() < 0.5 else rng.randint(0, len(body)), core)
    stories = rng.choices((0, 1, 2, 3, 5), (50, 23, 14, 9, 4))[0]
    for number in range(stories):
        story = rng.choice(NOISE if rng.random() < 0.25 else wide_phrases.STORIES)
        at = min(number, len(body)) if rng.random() < 0.6 else rng.randint(0, len(body))
        body.insert(at, styles.expanded(rng, story))
    if rng.random() < 0.4 and not any(text.startswith("^") for text in body):
        body.insert(0, styles.expanded(rng, rng.choice(greetings)))
    if rng.random() < 0.3:
        body.insert(0, styles.expanded(rng, rng.choice(wide_phrases.CLOSINGS)))
    signs = corpus._SIGN_OFFS
    parts = [text[1:] for text in body if text.startswith("^")]
    parts += [text for text in body if not text.startswith(("^", "~", *signs))]
    last = [text for text in body if text.startswith(signs)] + [text[1:] for text in body if text.startswith("~")]
    return _joined(rng, parts, sorted(last, key=lambda text: "{person}" in text), surface)


def _joined(rng: random.Random, parts: list[str], last: list[str], surface: Mapping[str, str]) -> str:
    parts, last = [part for part in parts if part], [part for part in last if part]
    if rng.random() < 0.28:
        rate = rng.choice((0.03, 0.08, 0.15))
        parts, last = [[styles.misspelt(rng, part, rate) for part in group] for group in (parts, last)]
    if rng.random() < 0.14:
        parts = styles.with_emoji(rng, parts)
    joint = rng.choices((" ", "\n", "mixed", " - ", ", ", "... ", " / ", "\n\n"), (62, 8, 12, 3, 7, 3, 2, 3))[0]
    strips = joint in (", ", " - ", " / ", "... ") or rng.random() < 0.12
    text = ""
    for part in parts:
        part = re.sub(r"[.,:]+$", "", part) if strips else part
        text += ((" ", "\n")[rng.random() < 0.3] if joint == "mixed" else joint) * bool(text) + part
    for part in last:
        text += rng.choice((" ", "\n", "\n", ", " if text[-1:].isalnum() else " ")) + part
    return text.format_map(surface).strip(" \n,")


def _list(
    rng: random.Random, kind: str, family: Family, surface: Mapping[str, str], complete: bool
) -> tuple[str, set[str]]:
    """Return a message as labels and values, or values alone, between marks of many sorts, and the slots that it tells."""
    omitted = set() if complete else _omitted(rng, family)
    names = [name for name in family.mandatory if name not in omitted]
    extras = [name for name in family.extras if name in LABELS and name != "urgent"]
    names += rng.sample(extras, min(len(extras), rng.choice((0, 0, 1, 2))))
    if "goods" in names and "item" in surface and rng.random() < 0.6:
        names[names.index("goods") : names.index("goods") + 1] = rng.sample(("item", "quantity"), 2)
    if rng.random() < 0.6:
        rng.shuffle(names)
    between = rng.choice((": ", ": ", ": ", "=", " = ", ":", " - ", " -> ", "\t"))
    case: Callable[[str], str] = rng.choice((str, str, str.lower, str.upper))
    bare = rng.random() < 0.2
    lines = []
    for name in names:
        label = rng.choice((*corpus_labels(kind, family, name), *_LABELS.get(name, "").split("|"))) or name
        needs = name not in ("goods", "item", "money", "city", "person") and not (name == "due" and rng.random() < 0.5)
        lines.append(surface[name] if bare and not needs else case(label) + between + surface[name])
    joint = rng.choice(("\n", "\n", "\n- ", "\n* ", " | ", "; ", ", ", " // ", "\n\n", " · "))
    title = rng.choice(family.titles) + (
        rng.choice((" ", " #", " no. ")) + surface["noise_ref"] if rng.random() < 0.1 else ""
    )
    text = (
        title
        + rng.choice((":", "", "!", ".", " -") if joint.startswith("\n") else (":", ""))
        + (joint if "\n" in joint else " ")
    )
    text += joint.join(lines)
    if rng.random() < 0.25:
        story = styles.expanded(rng, rng.choice((*wide_phrases.STORIES, *NOISE))).format_map(surface)
        text = f"{text}\n{story}" if rng.random() < 0.5 else f"{story}\n{text}"
    return text, set(names)


def corpus_labels(kind: str, family: Family, name: str) -> tuple[str, ...]:
    """Return the labels that the neat text has for a fact."""
    if name == "due":
        return family.due_labels
    if name == "person":
        return corpus._PERSON_LABELS.get(kind, LABELS["person"])
    return LABELS.get(name, ())


def _recased(rng: random.Random, text: str, facts: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a message and its facts, now and then all in small or all in capital letters."""
    shape = rng.random()
    if shape >= 0.17:
        return text, facts
    change: Callable[[str], str] = str.lower if shape < 0.13 else str.upper

    def changed(name: str, value: Any) -> Any:
        if name in _ENUMERATED or name in ("due", "dated"):
            return value
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list | tuple):
            return type(value)(changed(name, part) for part in value)
        return value

    return change(text), {name: changed(name, value) for name, value in facts.items()}


def reading_task(rng: random.Random, message: Message) -> Task:
    """Return the demo's record with the due date, or some of its fields, null where the message does not tell them."""
    fields = list(READING_FIELDS)
    if rng.random() < 0.35:
        fields = [field for field in fields if rng.random() < 0.7] or fields
    if rng.random() < 0.3:
        rng.shuffle(fields)
    schema = {key: {"anyOf": [FACTS[fact][0], {"type": "null"}]} for key, fact in fields}
    record = {key: message.facts.get(fact) for key, fact in fields}
    return _emptied(rng, Task("reading", corpus._object(schema), record))


def full_reading(message: Message) -> Task:
    """Return the demo's record with the due date, in order, null where the message does not tell it."""
    schema = {key: {"anyOf": [FACTS[fact][0], {"type": "null"}]} for key, fact in READING_FIELDS}
    return Task("reading", corpus._object(schema), {key: message.facts.get(fact) for key, fact in READING_FIELDS})


def wide_task(rng: random.Random, message: Message) -> Task:
    """Return a record of drawn facts under drawn names, also of facts that the message does not tell."""
    builder = corpus._TaskBuilder(rng, message)
    if rng.random() < 0.1:
        builder.add_group()
    if "items" in message.facts and ("item" not in message.facts or rng.random() < 0.05):
        builder.add_items()
    names = [name for name in message.facts if name in FACTS and (name != "urgent" or rng.random() < 0.25)]
    rng.shuffle(names)
    for name in names[: rng.choice((1, 2, 3, 4, 5, 6, 7))]:
        builder.add(name, nullable=rng.random() < 0.3)
    if message.absent and (not message.facts or rng.random() < 0.5):
        count = rng.randint(1, 7 if message.kind == OTHER else 3)
        for name in rng.sample(message.absent, min(len(message.absent), count)):
            builder.add(name, nullable=True)
    return _emptied(rng, builder.build())


def _emptied(rng: random.Random, task: Task) -> Task:
    """Return the task, now and then with an empty text or zero for what is null."""
    if rng.random() >= EMPTY_SHARE:
        return task
    record, schema = dict(task.record), dict(task.schema["properties"])
    for key, value in record.items():
        kinds = schema[key].get("anyOf", [{}])
        if value is None and kinds[0].get("type") in ("string", "integer", "number") and "format" not in kinds[0]:
            record[key] = "" if kinds[0]["type"] == "string" else 0
            schema[key] = kinds[0]
    return Task(task.name, corpus._object(schema), record)
