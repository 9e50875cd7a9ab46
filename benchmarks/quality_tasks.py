"""What `benchmarks.habits` asks: 60 messages and questions with their answers, written for it, and kept apart from any training text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, Field


class Order(BaseModel):
    """Who orders what, and how many."""

    customer: str = Field(max_length=40)
    item: str = Field(max_length=40)
    quantity: int = Field(ge=1, le=9999)


class Weather(BaseModel):
    """The arguments of a tool that reports the weather."""

    city: str = Field(max_length=40)
    unit: Literal["celsius", "fahrenheit"]


@dataclass(frozen=True)
class Task:
    """One question to the model.

    Attributes:
        kind: `record`, `arguments`, `choice`, `date` or `number`.
        question: what the user says, with the form of the answer.
        answer: the right answer: a dict of fields, or the text.
        form: the pydantic type, the options, or the pattern of the answer.
        lead: how the reply begins in every way, so that the answer can follow.
    """

    kind: str
    question: str
    answer: Any
    form: Any
    lead: str = ""


_RECORD = (
    'Read the message, and answer with JSON only: {{"customer": ..., "item": ..., "quantity": ...}}.\n\nMessage: {}'
)
_RECORDS = [
    ("Hi, Priya Raman here. Could you send us 12 desk lamps before the end of the month?", "Priya Raman", "desk lamps", 12),
    ("This is Tom Okafor from the bakery. We need 40 bread knives.", "Tom Okafor", "bread knives", 40),
    ("Please ship 3 garden chairs to me. Thanks, Helga Brandt", "Helga Brandt", "garden chairs", 3),
    ("My name is Luis Ferreira and I want to order 250 paper cups for a party.", "Luis Ferreira", "paper cups", 250),
    ("Good morning! 7 blue umbrellas, please. Regards, Ingrid Dahl", "Ingrid Dahl", "blue umbrellas", 7),
    ("Aiko Mori would like 15 tea pots, delivered to the back door.", "Aiko Mori", "tea pots", 15),
    ("We are out of printer paper again: 30 boxes of printer paper. Omar Haddad", "Omar Haddad", "printer paper", 30),
    ("Hello, Chloe Martin speaking. One hundred is too many, so send 60 candles.", "Chloe Martin", "candles", 60),
    ("Order from Pavel Novotny: 5 winter tyres. Nothing else this time.", "Pavel Novotny", "winter tyres", 5),
    ("Could I get 2 kitchen scales? I am Fatima Zahra, we met last week.", "Fatima Zahra", "kitchen scales", 2),
    ("Samuel Adeyemi wants 18 yoga mats for the new studio.", "Samuel Adeyemi", "yoga mats", 18),
    ("Hi! It's Greta Lindqvist. 9 wool blankets, same address as before.", "Greta Lindqvist", "wool blankets", 9),
    ("For the school: 120 pencils. Signed, Ruth Cohen", "Ruth Cohen", "pencils", 120),
    ("Dear team, I would like to buy 4 office desks. Yours, Marco Bianchi", "Marco Bianchi", "office desks", 4),
    ("Please reserve 22 concert tickets for me, Nadia Petrova.", "Nadia Petrova", "concert tickets", 22),
    ("Kenji Watanabe here, send 6 fishing rods and no bait.", "Kenji Watanabe", "fishing rods", 6),
    ("I, Sofia Alvarez, order 11 picture frames.", "Sofia Alvarez", "picture frames", 11),
    ("The hotel needs 80 bath towels. Contact: Daniel Weber", "Daniel Weber", "bath towels", 80),
    ("Hey, Emily Clark from accounting. 14 staplers would be great.", "Emily Clark", "staplers", 14),
    ("Send 35 flower pots, please. Anders Holm", "Anders Holm", "flower pots", 35),
]  # fmt: skip

_ARGUMENTS = (
    'Answer with the arguments for the weather tool as JSON only: {{"city": ..., "unit": "celsius" or "fahrenheit"}}.\n\n'
    "Question: {}"
)
_WEATHER = [
    ("How warm is it in Lisbon, in Celsius?", "Lisbon", "celsius"),
    ("What is the temperature in Chicago in Fahrenheit?", "Chicago", "fahrenheit"),
    ("Tell me the weather in Nairobi, in degrees Celsius.", "Nairobi", "celsius"),
    ("I am flying to Denver. How hot is it there in Fahrenheit?", "Denver", "fahrenheit"),
    ("Is it cold in Oslo today? Use Celsius.", "Oslo", "celsius"),
    ("Weather in Miami please, Fahrenheit.", "Miami", "fahrenheit"),
    ("Give me the Celsius temperature for Kyoto.", "Kyoto", "celsius"),
    ("How many degrees Fahrenheit is it in Boston?", "Boston", "fahrenheit"),
]

_CHOICE = "Is the review positive or negative? Answer with one word: positive or negative.\n\nReview: {}"
_REVIEWS = [
    ("The soup was cold and the waiter was rude.", "negative"),
    ("I loved every minute of this film.", "positive"),
    ("It broke after two days, and nobody answers my mails.", "negative"),
    ("Best coffee in town, and such friendly people!", "positive"),
    ("A waste of money.", "negative"),
    ("The room was clean, quiet and had a wonderful view.", "positive"),
    ("I would not recommend this phone to anyone.", "negative"),
    ("Great value, arrived early, works perfectly.", "positive"),
    ("Terrible sound, the cable is far too short.", "negative"),
    ("My children play with it every day and are happy.", "positive"),
    ("The book is boring and full of mistakes.", "negative"),
    ("Excellent service, I will come back.", "positive"),
]

_DATE = "When is it? Answer with the date only, as YYYY-MM-DD.\n\n{}"
_DATES = [
    ("The meeting is on 4 May 2027.", date(2027, 5, 4)),
    ("We leave on the 21st of June 2026.", date(2026, 6, 21)),
    ("The invoice is due on March 3, 2028.", date(2028, 3, 3)),
    ("Our wedding is on 12 September 2026.", date(2026, 9, 12)),
    ("The exam takes place on January 15, 2027.", date(2027, 1, 15)),
    ("Delivery: 30 November 2026, in the morning.", date(2026, 11, 30)),
    ("She was born on 7 July 1994.", date(1994, 7, 7)),
    ("The contract ends on December 31, 2029.", date(2029, 12, 31)),
    ("The concert is on 18 February 2027.", date(2027, 2, 18)),
    ("Please come on August 9, 2026.", date(2026, 8, 9)),
]

_NUMBER = "{} Answer with a number."
_NUMBERS = [
    ("What is 2+2?", "4"),
    ("How many days are in a week?", "7"),
    ("What is 10 minus 3?", "7"),
    ("How many legs does a spider have?", "8"),
    ("What is 5 times 6?", "30"),
    ("How many months are in a year?", "12"),
    ("How many minutes are in an hour?", "60"),
    ("What is half of 50?", "25"),
    ("How many sides does a triangle have?", "3"),
    ("How many letters are in the English alphabet?", "26"),
]


def tasks() -> list[Task]:
    """All 60, by kind."""
    records = [
        Task("record", _RECORD.format(text), {"customer": customer, "item": item, "quantity": quantity}, Order)
        for text, customer, item, quantity in _RECORDS
    ]
    arguments = [
        Task("arguments", _ARGUMENTS.format(text), {"city": city, "unit": unit}, Weather)
        for text, city, unit in _WEATHER
    ]
    choices = [Task("choice", _CHOICE.format(text), answer, ["positive", "negative"]) for text, answer in _REVIEWS]
    dates = [
        Task("date", _DATE.format(text), str(day), r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
        for text, day in _DATES
    ]
    numbers = [Task("number", _NUMBER.format(text), answer, r"[0-9]+", "The answer is ") for text, answer in _NUMBERS]
    return [*records, *arguments, *choices, *dates, *numbers]
