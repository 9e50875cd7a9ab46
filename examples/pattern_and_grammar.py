"""A date by a pattern, a sum by a grammar, a record by a schema: three constraints in one text, with Python in between."""

import json

from outlines_cont import control, models, samplers
from outlines_cont.control import fixed, gen

GRAMMAR = """
start: term (("+" | "-") term)~1..3
term: /[1-9][0-9]?/ | "(" /[1-9]/ "*" /[1-9]/ ")"
"""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Porto", "Oslo"]}, "quantity": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["city", "quantity"],
    "additionalProperties": False,
}


async def script() -> None:
    await fixed("Due: ")
    date = await gen(regex="20[0-9]{2}-(0[1-9]|1[0-2])-[0-2][0-9]", name="date")
    await fixed("\nSum: ")
    await gen(grammar=GRAMMAR, name="sum")
    await fixed(f"\nIn the year {date[:4]}\nRecord: ")
    record = json.loads(await gen(json=SCHEMA, name="record"))
    await fixed(f"\nOf these, {record['quantity']} go to {record['city']}.")


def main() -> None:
    prompt = "Message: Please send 12 desk lamps to Porto by 2031-05-14.\n"
    sampler = samplers.multinomial(temperature=0.8)
    print(control.run(models.tiny(), script, prompt, sampler=sampler, rng=2).check().text)


if __name__ == "__main__":
    main()
