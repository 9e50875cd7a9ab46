"""How a message of the wider text is written: alternatives, spelling mistakes, letters, emoji, what stands around it."""

import random
import re
from collections.abc import Sequence

from scripts.tiny import words

EMOJI = words.by_space(
    "😀 😂 🤣 😊 😍 😘 😎 🤔 😅 😢 😭 😡 😤 🙄 😴 🥳 🤗 🙏 👍 👎 👋 👏 💪 🤝 "
    "✌️ ❤️ 💙 💚 💔 💯 ✨ ⭐ 🔥 🎉 🎁 🎈 🎂 🎄 ☀️ ☔ ❄️ 🌈 🌸 🌷 🌲 🍀 🍕 🍎 "
    "☕ 🍷 🚗 🚚 🚀 ✈️ 🏠 🏢 🏬 🏖️ 🐶 🐱 🦊 🐻 📦 📫 📧 📞 📱 💻 🖥️ 💡 🔧 🔨 "
    "🪑 🛏️ 🛒 💰 💶 💵 💳 🧾 📅 ⏰ ⏳ ✅ ❌ ❗ ❓ ⚠️ 🆘 ➡️ 👉 🇪🇺 :) :-) ;) :( :D <3 xD"
)
_ALTERNATIVES = re.compile(r"\(([^()]*\|[^()]*)\)")
_FOOTERS = ("Sent from my phone", "Get our app", "Please think before you print this.", "This mail is confidential.")
_WORD = re.compile(r"[A-Za-z']{3,}")
_SLOT = re.compile(r"\{\w+\}")
_MISSPELT = {
    "please": "plase pleas plz pleese",
    "received": "recieved receved",
    "address": "adress addres",
    "because": "becuase cause becouse",
    "tomorrow": "tommorow tomorow",
    "quantity": "quantitiy quantety",
    "delivery": "delivry delievery",
    "deliver": "delivr deliwer",
    "until": "untill till",
    "the": "teh th the",
    "your": "ur you're youre",
    "you": "u yu",
    "and": "an & n",
    "for": "4 fr",
    "to": "2 too",
    "are": "r",
    "with": "w/ wiht",
    "want": "wnat wan't",
    "would": "wuld woud",
    "really": "realy rly",
    "business": "buisness",
    "invoice": "invioce invoyce",
    "complaint": "complain complant",
    "order": "ordr oder",
    "quote": "qoute",
    "price": "prise",
    "broken": "brokn",
    "thanks": "thx tnx thanx",
}


def expanded(rng: random.Random, template: str) -> str:
    """Return a template with one of each `(this|that|)` taken, innermost first, and runs of spaces as one."""
    while found := _ALTERNATIVES.search(template):
        template = template[: found.start()] + rng.choice(found[1].split("|")) + template[found.end() :]
    plain = template.replace("\\n", "\n")
    return re.sub("  +", " ", plain).strip(" ").replace(" ,", ",").replace(" .", ".")


def misspelt(rng: random.Random, template: str, rate: float) -> str:
    """Return a template whose words, not its slots, have spelling mistakes: known ones, or letters lost, doubled or swapped."""
    parts = []
    at = 0
    for slot in [*_SLOT.finditer(template), None]:
        plain = template[at : slot.start()] if slot else template[at:]
        parts.append(_WORD.sub(lambda match: _mistake(rng, match[0]) if rng.random() < rate else match[0], plain))
        if slot:
            parts.append(slot[0])
            at = slot.end()
    return "".join(parts)


def _mistake(rng: random.Random, word: str) -> str:
    known = _MISSPELT.get(word.lower())
    if known and rng.random() < 0.7:
        return rng.choice(known.split())
    at = rng.randrange(len(word) - 1)
    return rng.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + rng.choice("aeiourstnl") + word[at + 1 :],
        )
    )


def emoji(rng: random.Random) -> str:
    """Return one to three emoji."""
    return rng.choice(EMOJI) * rng.choice((1, 1, 1, 2, 3)) if rng.random() < 0.6 else "".join(rng.sample(EMOJI, 2))


def with_emoji(rng: random.Random, sentences: Sequence[str]) -> list[str]:
    """Return sentences with emoji at some of their ends, now and then at the beginning or in place of the full stop."""
    out = []
    for sentence in sentences:
        if rng.random() < 0.5:
            if rng.random() < 0.4 and sentence.endswith("."):
                sentence = sentence[:-1]
            sentence = f"{sentence} {emoji(rng)}" if rng.random() < 0.8 else f"{emoji(rng)} {sentence}"
        out.append(sentence)
    return out


def framed(rng: random.Random, text: str, sender: str, company: str, subject: str) -> str:
    """Return a message with what programs put around one: heads of mails, times of chats, marks of quoted lines.

    Args:
        rng: Where it is drawn from.
        text: The message.
        sender: Who is named as the sender.
        company: Who is named as the receiver.
        subject: What it is about.
    """
    hour, minute = rng.randint(0, 23), rng.randint(0, 59)
    clock = f"{hour:02d}:{minute:02d}"
    address = re.sub("[^a-z]", "", sender.lower()) or "x"
    mail = f"{address}@{rng.choice(('example', 'mail', 'post', 'web'))}.{rng.choice(('com', 'org', 'net', 'example'))}"
    to = rng.choice((company, "info", "office", "shop", "support", "you", "orders@shop.example"))
    shapes = (
        f"From: {sender} <{mail}>\nTo: {to}\nSubject: {subject}\n\n{text}",
        f"From: {sender}\nSubject: {subject}\n\n{text}",
        f"Subject: {subject}\n{text}",
        f"{subject}\n\n{text}",
        f"Fwd: {subject}\n> From: {sender}\n> " + text.replace("\n", "\n> "),
        f"[{clock}] {sender}: {text}",
        f"{clock} {sender}: {text}",
        f"{sender} wrote:\n{text}",
        f"{sender}, {clock}\n{text}",
        f"***\n{text}\n***",
        f'"{text}"',
        f"{text}\n--\n{sender}, {company}",
        f"{text}\n\n{rng.choice(_FOOTERS)}",
    )
    return rng.choice(shapes)
