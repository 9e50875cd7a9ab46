"""The chat form of the training text: the template, its turn tokens, and conversations about a message.

A conversation asks for the record, the kind, the due date or one fact, corrects what was said, or only greets. The user's words
come first in a turn and the question after them, so that many questions can follow one message.
"""

import random
from typing import Any

from scripts.tiny import styles
from scripts.tiny.corpus import FACTS, Message, Task
from scripts.tiny.documents import Document, Piece
from scripts.tiny.names import NameSource

TURN_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>")
END = "<eos>"
TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + (message.role if message.role in ('system', 'assistant') else 'user') + '|>' + message.content + eos_token -}}"
    "{%- endfor -%}"
    "{{- '<|assistant|>' if add_generation_prompt else '' -}}"
)
"""Written into the tokenizer. Every turn ends with the end token, as every generated piece does."""


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


_SYSTEMS = _lines("""
You (read|handle) (messages|mail|letters|orders) (of customers|for a shop|for us|and answer questions|)(.|)
You are (a helpful|a careful|an exact|a quick) (assistant|clerk|reader|helper)(.| of a shop.| who reads messages.|)
You take orders(.|)
You (write|return|answer with) (records|JSON|a record|JSON only)(.|, nothing else.|)
(Answer|Reply) (shortly|in JSON|with one word or a record|exactly as written)(.|)
(Copy|Write) names as they (are spelled|stand there)(.|)
(Extract|Find) (the order|the facts|what is asked)(.| from messages.|)
Be (short|exact|kind)(.|)
""")
_INTROS = _lines("""
(Here is a message|A message came in|New message|Message|Please read this|Read this|Mail of today|This came in)(:|.)
""")
_ASK_RECORD = _lines("""
(Write|Give me|Return|Make|I need|Please write|Please give me) (the|a|its) record(.|, please.| as JSON.|)
(Extract|Read|Fill in|List) (the order|the facts|the data|the fields|everything)(.| as JSON.|, please.|)
(As JSON|JSON|Record|JSON please)(.|:|?|)
(What is in it|What does it say|What do they want)?
""")
_ASK_KIND = _lines("""
(What kind of message|What sort of message|What) is (it|this|that)?
(Kind|Which kind|What kind|Type)(?|:)
(Is it an order or what|What is it about)?
""")
_ASK_DUE = _lines("""
(When|By when|On which day) is (it|this|that) (due|wanted|needed)?
(Due|Due date|Deadline|Which date|Until when|When)(?|:)
(What is|Tell me) the (due date|deadline|date)(?|.|, please.)
And (when|by when)(?| is it due?)
""")
_ASK_FACT: dict[str, tuple[str, ...]] = {
    "person": ("(Who|And who) is (the customer|it|the person)?", "(Customer|Name|The name)(?|:)"),
    "city": ("(Which|What) (city|town|place)?", "(Where|Where to|And where)?", "(City|Place)(?|:)"),
    "item": ("(What|Which) (item|product|goods|thing) (is it|do they mean|)?", "(Item|Product)(?|:)"),
    "quantity": ("How many( pieces| are there|)?", "(Quantity|Number|Count)(?|:)"),
    "price": ("How much( is it| in numbers|)?", "(Price|Sum|The price)(?|:)"),
    "currency": ("(Which|What) currency?", "Currency(?|:)"),
    "company": ("(Which|What) (company|firm)?",),
    "phone": ("(Which|What) (phone number|number) (is it|do they have|)?", "Phone(?|:)"),
    "email": ("(Which|What) (email|address) (is it|do they have|)?", "Email(?|:)"),
}
_UNTOLD = "It does not say."
_GREETINGS = _lines("""
(Hello|Hi|Hey|Good day|Good morning|Good evening)(.|!|, how are you?| there.|)
(Are you there|Can you help me|What can you do|Who are you)?
""")
_GREETED = "Good day. Which message shall I read?"
_THANKS = _lines("""
(Thanks|Thank you|Many thanks|Great|Perfect|Fine)(.|!|, that is all.| so much.)
(That is all|That's it|Nothing else|Bye)(.|, thanks.|)
""")
_THANKED = "You are welcome."
_NO_RECORD = "I see no order, invoice or other business message."
_CHANGES: dict[str, tuple[str, ...]] = {
    "quantity": (
        "(Make it|Make that|Change it to|Sorry, I mean|No,|I need|Let us take|Rather) {value}( instead| pieces|, please|)(.|!|)",
    ),
    "city": (
        "(Send it to|It goes to|Change the city to|Deliver to|No, to|Rather to) {value}( instead|, please|)(.|!|)",
        "The (city|place) is {value}(.|)",
    ),
    "person": (
        "(The customer is|It is for|Change the name to|The name is|For) {value}( instead|, please|)(.|!|)",
        "No, (it is for|the customer is) {value}(.|)",
    ),
    "due": ("(By|Until|Not before|Change the date to|The date is|Make it) {value}( instead|, please|)(.|!|)",),
}
_SMALL = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 10: "ten", 12: "twelve"}


class Conversations:
    """Draws conversations about messages.

    Args:
        held_out: Whether to use the names and places that training never shows.
    """

    def __init__(self, held_out: bool = False) -> None:
        self._words = NameSource(held_out)

    def document(self, rng: random.Random, message: Message, tasks: list[Task]) -> Document:
        """Return a message of the user and one conversation for each of `tasks`."""
        prompt = self._opening(rng)
        prompt += (
            "<|user|>" + (_said(rng, _INTROS) + rng.choice(("\n", " ")) if rng.random() < 0.2 else "") + message.text
        )
        return Document(prompt, tuple(self._turns(rng, message, task) for task in tasks))

    def small_talk(self, rng: random.Random, message: Message, task: Task) -> Document:
        """Return a conversation that greets before the message comes."""
        prompt = f"{self._opening(rng)}<|user|>{_said(rng, _GREETINGS)}"
        turns = [Piece(f"{END}<|assistant|>", _GREETED, "talk")]
        first, *rest = self._turns(rng, message, task)
        turns.append(Piece(f"{END}<|user|>{message.text}{first.appended}", first.text, first.name))
        return Document(prompt, ((*turns, *rest),))

    def _opening(self, rng: random.Random) -> str:
        return f"<|system|>{_said(rng, _SYSTEMS)}{END}" if rng.random() < 0.5 else ""

    def _turns(self, rng: random.Random, message: Message, task: Task) -> tuple[Piece, ...]:
        turns = [self._first(rng, message, task)]
        shown = task if turns[0].text == task.text else None
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            changed = self._changed(rng, message, shown) if shown and rng.random() < 0.45 else None
            if changed:
                ask, shown = changed
                reply, name = shown.text, "edit"
            elif rng.random() < 0.2:
                ask, reply, name = _said(rng, _THANKS), _THANKED, "talk"
            elif shown and shown != task:
                ask, reply, name = _said(rng, _ASK_RECORD), shown.text, "chat"
            else:
                ask, reply, name = self._question(rng, message, task)
                shown = task if reply == task.text else shown
            turns.append(Piece(f"{END}<|user|>{ask}{END}<|assistant|>", reply, name))
        return tuple(turns)

    def _first(self, rng: random.Random, message: Message, task: Task) -> Piece:
        if rng.random() < 0.5:
            reply = _NO_RECORD if message.kind == "other" and rng.random() < 0.3 else task.text
            return Piece(f"{END}<|assistant|>", reply, "chat" if reply == task.text else "talk")
        ask, reply, name = self._question(rng, message, task)
        return Piece(f"{rng.choice((' ', chr(10), chr(10) * 2))}{ask}{END}<|assistant|>", reply, name)

    def _question(self, rng: random.Random, message: Message, task: Task) -> tuple[str, str, str]:
        """Return a question, the reply, and what was asked for."""
        shape = rng.random()
        if shape < 0.4:
            return _said(rng, _ASK_RECORD), task.text, "chat"
        if shape < 0.55:
            return _said(rng, _ASK_KIND), message.kind, "chat kind"
        if shape < 0.7 and "due" in message.facts:
            return _said(rng, _ASK_DUE), message.due, "chat due"
        facts = [fact for fact in _ASK_FACT if fact in message.facts or rng.random() < 0.1] or ["person"]
        fact = rng.choice(facts)
        value = message.facts.get(fact)
        return _said(rng, _ASK_FACT[fact]), _UNTOLD if value is None else str(value), "chat fact"

    def _changed(self, rng: random.Random, message: Message, task: Task) -> tuple[str, Task] | None:
        """Return what the user corrects in a record, and the record after it; None where there is nothing that one corrects."""
        found = {fact: key for key in task.record for fact in _CHANGES if _asks(key, task.record[key], fact, message)}
        if not found:
            return None
        fact = rng.choice(sorted(found))
        value: Any = {
            "quantity": lambda: rng.choice((rng.randint(1, 12), rng.randint(1, 300))),
            "city": lambda: self._words.city(rng),
            "person": lambda: self._words.person(rng),
            "due": lambda: f"{rng.randint(2024, 2039)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
        }[fact]()
        spelled = _SMALL[value] if fact == "quantity" and value in _SMALL and rng.random() < 0.6 else str(value)
        ask = styles.expanded(rng, rng.choice(_CHANGES[fact])).format(value=spelled)
        return ask, Task(task.name, task.schema, {**task.record, found[fact]: value})


def _asks(key: str, value: object, fact: str, message: Message) -> bool:
    """Return whether a key of a record holds a fact of the message."""
    names = [*FACTS[fact][1].split(), "delivery_date"]
    return key in names and value is not None and value == message.facts.get(fact)


def _said(rng: random.Random, templates: tuple[str, ...]) -> str:
    return styles.expanded(rng, rng.choice(templates))
