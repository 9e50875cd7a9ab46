"""What `benchmarks.quality` asks: 312 questions with answers that a program checks, in six kinds of 52, in three levels of difficulty.

The sentences were written for it, and a program with a fixed seed puts names, numbers and dates into them, so no text on the net has them.
`questions` returns them in an order in which any beginning has all kinds and levels.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import chain, count
from typing import Any

KINDS = ("record", "choice", "number", "tool", "quote", "sql")
COUNT = 52  # of each kind


@dataclass(frozen=True)
class Question:
    """One question to a model.

    Attributes:
        kind: one of `KINDS`.
        level: 1, 2 or 3, the hardest.
        text: what the user says, with the form of the answer.
        schema: the JSON Schema of the answer; None if it is no JSON.
        pattern: the regular expression of the answer; None if it is JSON, or one of some options.
        options: the options; empty for other kinds.
        check: the share of an answer that is right, from 0 to 1, given its text, which has the form.
        empty: the same question without content, for `against`; empty if there is none.
        lead: how the reply begins in every way.
    """

    kind: str
    level: int
    text: str
    check: Callable[[str], float]
    schema: dict[str, Any] | None = None
    pattern: str | None = None
    options: tuple[str, ...] = ()
    empty: str = ""
    lead: str = ""
    answer: str = field(default="", compare=False)


def questions() -> list[Question]:
    """Return all, the kinds in turn; no two are the same."""
    seen: set[str] = set()
    by_kind = [[_unseen(kind, i, seen) for i in range(COUNT)] for kind in KINDS]
    return [*chain.from_iterable(zip(*by_kind, strict=True))]


def _unseen(kind: str, i: int, seen: set[str]) -> Question:
    """Return number `i` of a kind, of the first seed whose text was not seen, and note it."""
    for attempt in count():
        found = _MAKERS[kind](random.Random(f"{kind} {i} {attempt}"), i)
        if found.text not in seen:
            break
    seen.add(found.text)
    return found


_NAMES = (
    "Priya Raman", "Tom Okafor", "Helga Brandt", "Luis Ferreira", "Ingrid Dahl", "Aiko Mori", "Omar Haddad", "Chloe Martin", "Pavel Novotny",
    "Fatima Zahra", "Samuel Adeyemi", "Greta Lindqvist", "Ruth Cohen", "Marco Bianchi", "Nadia Petrova", "Kenji Watanabe",
)  # fmt: skip
_CITIES = ("Lisbon", "Oslo", "Nairobi", "Kyoto", "Denver", "Graz", "Lima", "Tampere", "Leeds", "Porto")
_ITEMS = (
    "desk lamps", "bread knives", "garden chairs", "paper cups", "blue umbrellas", "tea pots", "candles", "winter tyres", "yoga mats",
    "wool blankets", "office desks", "fishing rods", "picture frames", "bath towels", "flower pots",
)  # fmt: skip
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def _level(i: int) -> int:
    return i % 3 + 1


def is_same(found: Any, expected: Any) -> bool:
    """Return whether a value counts as an expected one: a text in any case and with a dot at its end, a number as text."""
    if isinstance(expected, str):
        is_scalar = isinstance(found, str | int) and not isinstance(found, bool)
        return is_scalar and str(found).strip(" .").casefold() == expected.strip(" .").casefold()
    return type(found) is type(expected) and bool(found == expected)


def _shares(expected: dict[str, Any]) -> Callable[[str], float]:
    """Return the check of a flat record: the share of its fields that are right."""

    def check(text: str) -> float:
        try:
            found = json.loads(text)
        except ValueError:
            return 0.0
        if not isinstance(found, dict):
            return 0.0
        return sum(name in found and is_same(found[name], value) for name, value in expected.items()) / len(expected)

    return check


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


# -- records: nested and optional fields ------------------------------------------------------------------------------

_TEXT = {"type": "string", "maxLength": 30}
_LINE = _object({"item": _TEXT, "quantity": {"type": "integer", "minimum": 1, "maximum": 9999}})


def _record(rng: random.Random, i: int) -> Question:
    level, name, city = _level(i), rng.choice(_NAMES), rng.choice(_CITIES)
    items = rng.sample(_ITEMS, 2 if level == 3 else 1)
    lines = [{"item": item, "quantity": rng.randint(2, 250)} for item in items]
    wanted = " and ".join(f"{line['quantity']} {line['item']}" for line in lines)
    has_city, is_express = level > 1 and rng.random() < 0.6, rng.random() < 0.5
    parts = [
        rng.choice(
            [
                f"Hi, {name} here. Please send us {wanted}",
                f"This is {name}. We need {wanted}",
                f"{name} would like {wanted}",
            ]
        ),
        f" to {city}." if has_city else ".",
        *([f" Not the {rng.choice([one for one in _ITEMS if one not in items])} this time."] if level == 3 else []),
        *([" It is urgent, please use express delivery." if is_express else " No hurry."] if level > 1 else []),
    ]
    properties: dict[str, Any] = {"customer": _TEXT}
    expected: dict[str, Any] = {"customer": name}
    if level > 1:
        properties |= {"city": {"anyOf": [{"type": "null"}, _TEXT]}, "express": {"type": "boolean"}}
        expected |= {"city": city if has_city else None, "express": is_express}
    if level == 3:
        properties["lines"] = {"type": "array", "items": _LINE, "minItems": 1, "maxItems": 3}
        expected["lines"] = lines
    else:
        properties |= _LINE["properties"]
        expected |= lines[0]
    form = {
        1: '"item": ..., "quantity": ...',
        2: '"city": ... or null, "express": true or false, "item": ..., "quantity": ...',
    }
    nested = '"city": ... or null, "express": true or false, "lines": [{"item": ..., "quantity": ...}]'
    ask = (
        f'Read the message, and answer with JSON only: {{"customer": ..., {form.get(level, nested)}}}.\n\nMessage: {{}}'
    )
    return Question(
        "record", level, ask.replace("{}", "".join(parts)), _shares(expected), schema=_object(properties), empty=ask.replace("{}", "N/A"),
        answer=json.dumps(expected),
    )  # fmt: skip


# -- choices ----------------------------------------------------------------------------------------------------------

_REVIEWS = {
    "positive": (
        "The soup was warm and the waiter was kind.", "I loved every minute of this film.", "Best coffee in town!", "It works perfectly.",
        "The room was clean and quiet.", "My children play with it every day.", "Excellent service, I will come back.",
        "It is cheaper than the old one, and twice as fast.", "I expected nothing and was surprised how good it is.",
    ),
    "negative": (
        "The soup was cold and the waiter was rude.", "It broke after two days.", "A waste of money.", "Terrible sound.", "The book is boring.",
        "I would not recommend this phone to anyone.", "Nobody answers my mails.", "It looks nice, but I had to send it back.",
        "I wish I had bought the other one.",
    ),
}  # fmt: skip
_KINDS_OF_MESSAGES = {
    "order": (
        "Please send 12 desk lamps.",
        "I would like to buy two tickets.",
        "We need ten more chairs by Friday.",
        "Put me down for a crate of apples.",
    ),
    "complaint": (
        "The chairs are broken.",
        "My parcel came open and half of it is missing.",
        "The heater stopped after one night.",
        "This is not what I paid for.",
    ),
    "question": (
        "When do you open on Sunday?",
        "Is the lamp available in green?",
        "Do you ship to Norway?",
        "How heavy is the table?",
    ),
    "cancellation": (
        "Please cancel my booking.",
        "I do not need the lamps any more.",
        "We will not come on Saturday after all.",
        "Take my name off the list.",
    ),
    "thanks": (
        "Thank you for the quick help!",
        "The flowers were lovely, many thanks.",
        "Everything arrived, great work.",
        "You have made my day.",
    ),
}
_TOPICS = {
    "sport": (
        "The keeper saved a penalty in the last minute.",
        "She ran the marathon in three hours.",
        "They lost the final by one goal.",
    ),
    "weather": ("Heavy snow is expected in the valleys tonight.", "It will be dry and mild until the weekend."),
    "music": ("The quartet plays Haydn tonight.", "Her new album has twelve songs."),
    "cooking": ("Let the dough rest for an hour.", "Add the onions when the butter is brown."),
    "travel": ("The night train to Vienna leaves at nine.", "Our ferry was late, so we missed the bus."),
    "finance": ("The bank has raised its rates again.", "Shares fell by two percent on Monday."),
    "medicine": ("Take the tablets after meals.", "The nurse changed the bandage twice a day."),
    "gardening": ("Cut the roses back in March.", "Slugs have eaten all the lettuce."),
}


def _choice(rng: random.Random, i: int) -> Question:
    level = _level(i)
    table = (_REVIEWS, _KINDS_OF_MESSAGES, _TOPICS)[level - 1]
    what = ("Is the review positive or negative?", "What kind of message is it?", "What is the sentence about?")[
        level - 1
    ]
    options = tuple(table)
    answer = options[i // 3 % len(options)]
    text = table[answer][i // 3 // len(options) % len(table[answer])]
    ask = f"{what} Answer with one word: {', '.join(options[:-1])} or {options[-1]}.\n\nText: {{}}"
    return Question(
        "choice", level, ask.format(text), lambda found: float(found.strip(" .").casefold() == answer), options=options,
        empty=ask.format("N/A"), answer=answer,
    )  # fmt: skip


# -- dates and numbers ------------------------------------------------------------------------------------------------


def _number(rng: random.Random, i: int) -> Question:
    level = _level(i)
    if i // 3 % 2:
        day = date(2026, 1, 1) + timedelta(days=rng.randint(0, 1400))
        name = _MONTHS[day.month - 1]
        written = rng.choice([f"{day.day} {name} {day.year}", f"{name} {day.day}, {day.year}"])
        if level == 1:
            text, found = f"The meeting is on {written}.", day
        elif level == 2:
            text, found = (
                f"It was planned for {_MONTHS[day.month % 12]} {day.year}, but now the meeting is on {written}.",
                day,
            )
        else:
            text, found = (
                f"The course begins on {written}, and the exam is on the next day. When is the exam?",
                day + timedelta(days=1),
            )
        pattern = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
        return _exact(
            "number", level, f"When is it? Answer with the date only, as YYYY-MM-DD.\n\n{text}", pattern, str(found)
        )
    a, b, c = rng.randint(2, 12), rng.randint(2, 12), rng.randint(2, 5)
    item = rng.choice(_ITEMS)
    text, value = {
        1: (f"What is {a} + {b}?", a + b),
        2: (f"I have {a + b} {item} and give {b} of them away. How many are left?", a),
        3: (f"There are {a} boxes with {c} {item} each, and {b} more {item}. How many {item} are there?", a * c + b),
    }[level]
    return _exact("number", level, f"{text} Answer with a number.", "[0-9]{1,4}", str(value), lead="The answer is ")


def _exact(kind: str, level: int, text: str, pattern: str, answer: str, lead: str = "") -> Question:
    return Question(
        kind, level, text, lambda found: float(found.strip() == answer), pattern=pattern, lead=lead, answer=answer
    )


# -- calls of one to ten tools ----------------------------------------------------------------------------------------

_UNITS = ("celsius", "fahrenheit")
_TOOLS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "get_weather": ({"city": _CITIES, "unit": _UNITS}, ("How warm is it in {city}, in {unit}?", "Weather in {city} please, {unit}.")),
    "book_table": ({"city": _CITIES, "people": range(2, 9)}, ("Book a table for {people} in {city}.", "We are {people} and want to eat in {city}.")),
    "send_email": ({"to": _NAMES}, ("Write an e-mail to {to}.", "{to} should get a mail from me.")),
    "set_timer": ({"minutes": range(3, 90)}, ("Wake me in {minutes} minutes.", "Set a timer for {minutes} minutes.")),
    "play_music": ({"artist": ("Haydn", "Nina Simone", "Mercedes Sosa", "Miles Davis")}, ("Play something by {artist}.", "I want to hear {artist}.")),
    "buy_stock": ({"shares": range(2, 90)}, ("Buy {shares} shares for me.", "I would like to own {shares} more shares.")),
    "find_train": ({"start": _CITIES[:5], "end": _CITIES[5:]}, ("A train from {start} to {end}, please.", "How do I get from {start} to {end} by train?")),
    "translate": ({"language": ("German", "Finnish", "Swahili")}, ("Say it in {language}.", "Translate this into {language}.")),
    "convert_money": ({"amount": range(5, 900)}, ("How much are {amount} euros in dollars?", "Change {amount} euros into dollars.")),
    "call_taxi": ({"name": _NAMES}, ("{name} needs a taxi.", "Call a taxi for {name}.")),
}  # fmt: skip


def _tool(rng: random.Random, i: int) -> Question:
    level = _level(i)
    count = (rng.randint(1, 3), rng.randint(4, 6), rng.randint(7, 10))[level - 1]
    chosen = rng.sample(sorted(_TOOLS), count)
    name = rng.choice(chosen)
    arguments, sentences = _TOOLS[name]
    values = {key: rng.choice(list(domain)) for key, domain in arguments.items()}
    described = "\n".join(f"- {tool}({', '.join(_TOOLS[tool][0])})" for tool in chosen)
    text = (
        f'Call one of these tools. Answer with JSON only: {{"tool": ..., "arguments": {{...}}}}.\n{described}\n\n'
        f"User: {rng.choice(sentences).format(**values)}"
    )

    def check(found: str) -> float:
        try:
            call = json.loads(found)
            right = sum(is_same(call["arguments"].get(key), value) for key, value in values.items())
        except (ValueError, AttributeError, KeyError, TypeError):
            return 0.0
        return (1 + right) / (1 + len(values)) if call.get("tool") == name else 0.0

    forms = [_object({"tool": {"const": tool}, "arguments": _object(_arguments(tool))}) for tool in chosen]
    return Question(
        "tool", level, text, check, schema={"anyOf": forms}, answer=json.dumps({"tool": name, "arguments": values})
    )


def _arguments(tool: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, domain in _TOOLS[tool][0].items():
        whole = {"type": "integer", "minimum": 1, "maximum": 9999}
        found[key] = whole if isinstance(domain, range) else {"enum": list(_UNITS)} if key == "unit" else _TEXT
    return found


# -- grounded answers with quotes -------------------------------------------------------------------------------------

_FACTS = (
    ("The bakery {a} opens at {n} in the morning.", "When does the bakery {a} open?", "n"),
    ("{name} runs the museum in {city}.", "Who runs the museum in {city}?", "name"),
    ("The bridge near {a} is {n} metres long.", "How long is the bridge near {a}, in metres?", "n"),
    ("The school in {city} has {n} pupils.", "How many pupils has the school in {city}?", "n"),
    ("{name} won the chess tournament of {a}.", "Who won the chess tournament of {a}?", "name"),
    ("The boat to {a} leaves from {city}.", "From where does the boat to {a} leave?", "city"),
    ("A ticket for the {a} concert costs {n} euros.", "How many euros is a ticket for the {a} concert?", "n"),
    ("{name} has painted the church of {a}.", "Who has painted the church of {a}?", "name"),
)
_PLACES = ("Almera", "Tolven", "Brisk", "Norrby", "Quenta", "Falun", "Ostra", "Mirel", "Dunmore", "Keld")


def _quote(rng: random.Random, i: int) -> Question:
    level = _level(i)
    chosen, places = rng.sample(_FACTS, 2 + level), rng.sample(_PLACES, 2 + level)
    names, cities = rng.sample(_NAMES, 2 + level), rng.sample(_CITIES, 2 + level)
    numbers = rng.sample(range(2, 99), 2 + level)
    known = [
        {"a": place, "name": name, "city": city, "n": str(number)}
        for place, name, city, number in zip(places, names, cities, numbers, strict=True)
    ]
    sentences = [fact[0].format(**values) for fact, values in zip(chosen, known, strict=True)]
    at = rng.randrange(len(chosen))
    question, answer = chosen[at][1].format(**known[at]), known[at][chosen[at][2]]
    text = (
        'Answer from the text, with JSON only: {"quote": the sentence of the text that says it, "answer": the answer}.\n\n'
        f"Text: {' '.join(sentences)}\n\nQuestion: {question}"
    )
    schema = _object({"quote": {"enum": sentences}, "answer": _TEXT})
    return Question(
        "quote", level, text, _shares({"quote": sentences[at].strip("."), "answer": answer}), schema=schema,
        answer=json.dumps({"quote": sentences[at], "answer": answer}),
    )  # fmt: skip


# -- SQL --------------------------------------------------------------------------------------------------------------

_COLUMNS = ("name", "city", "age", "salary")
_ROWS = [
    (name, _CITIES[i % 4], 21 + 7 * i % 40, 1000 + 370 * i % 3000)
    for i, name in enumerate(name.split()[0] for name in _NAMES)
]
_CITY = "|".join(_CITIES[:4])
_CONDITION = f"(age (<|>|=) [0-9]{{1,2}}|salary (<|>|=) [0-9]{{1,4}}|city = '({_CITY})')"
_SQL = f"SELECT (name|city|age|salary|COUNT\\(\\*\\)) FROM staff WHERE {_CONDITION}( AND {_CONDITION})?( ORDER BY (age|salary))?;"


def _sql(rng: random.Random, i: int) -> Question:
    level, right, asked = _level(i), "", ""
    while not _selects_some(right):
        right, asked = _query(rng, level)
    text = (
        f"The table is staff({', '.join(_COLUMNS)}). Answer with one SQL query only, such as\n"
        f"SELECT name FROM staff WHERE age = 40 AND city = 'Oslo' ORDER BY salary;\n\n{asked}"
    )
    return Question(
        "sql", level, text, lambda found: float(_result(found) == _result(right)), pattern=_SQL, answer=right
    )


def _query(rng: random.Random, level: int) -> tuple[str, str]:
    """Return a query and what it is asked by."""
    city, age, salary = rng.choice(_CITIES[:4]), rng.randint(25, 50), 100 * rng.randint(12, 35)
    numbers = [
        (f"age > {age}", f"who are older than {age}"),
        (f"salary < {salary}", f"who earn less than {salary}"),
        (f"salary > {salary}", f"who earn more than {salary}"),
    ]
    chosen = [(f"city = '{city}'", f"who live in {city}"), rng.choice(numbers)] if level == 3 else [rng.choice(numbers)]
    column, asked = rng.choice([("name", "the names"), ("city", "the cities"), ("salary", "the salaries")])
    if level == 2 and rng.random() < 0.5:
        column, asked = "COUNT(*)", "the number"
    order = " ORDER BY age" if level > 1 and column != "COUNT(*)" else ""
    query = f"SELECT {column} FROM staff WHERE {' AND '.join(sql for sql, _ in chosen)}{order};"
    people = " and ".join(words for _, words in chosen)
    return query, f"I want {asked} of the people {people}{', sorted by age' if order else ''}."


def _selects_some(query: str) -> bool:
    """Return whether a query selects some rows, and not all."""
    where = query.partition(" WHERE ")[2].partition(" ORDER")[0].rstrip(";")
    return bool(where) and 0 < len(_result(f"SELECT name FROM staff WHERE {where};") or ()) < len(_ROWS)


def _result(query: str) -> list[Any] | None:
    """Return the rows that a query selects from the table; None if it cannot be run, or is no query."""
    if not re.match(r"\s*SELECT\b", query, re.IGNORECASE):
        return None
    with closing(sqlite3.connect(":memory:")) as table:
        table.execute("CREATE TABLE staff (name TEXT, city TEXT, age INTEGER, salary INTEGER)")
        table.executemany("INSERT INTO staff VALUES (?, ?, ?, ?)", _ROWS)
        try:
            return table.execute(query).fetchall()
        except (sqlite3.Error, sqlite3.Warning):
            return None


_MAKERS: dict[str, Callable[[random.Random, int], Question]] = {
    "record": _record, "choice": _choice, "number": _number, "tool": _tool, "quote": _quote, "sql": _sql,
}  # fmt: skip
