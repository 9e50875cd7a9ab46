"""A program as a template: one row, many rows on one engine, and what each of them has captured."""

from outlines_cont import Template, models

SOURCE = """\
Message: {{ text }}
Kind: {{ choice("kind", ["order", "invoice", "complaint"]) }}
{%- if kind == "order" %}
Quantity: {{ gen("quantity", regex="[1-9][0-9]?") }}
{%- endif %}
Record: {{ json("record", schema) }}
"""
SCHEMA = {
    "type": "object",
    "properties": {"customer": {"type": "string", "maxLength": 40}, "item": {"type": "string", "maxLength": 40}},
    "required": ["customer", "item"],
    "additionalProperties": False,
}
MESSAGES = [
    "Hello, this is Ana Novak. Please send 3 lamps by 2026-05-04.",
    "This is Owen Achterberg. The garden chair arrived broken.",
    "Marta Keller here, we need 12 desks in Porto.",
]

model = models.tiny()
template = Template(SOURCE)

with model.meter() as meter:
    results = template.run(model, [{"text": text} for text in MESSAGES], schema=SCHEMA)
for result in results:
    print(result.check().captures["kind"], result.captures.get("quantity", "-"), result.captures["record"])
print(f"{len(results)} programs in {meter.forwards} forwards, {meter.fed_tokens} tokens fed")

# A state goes on, with another template: nothing is fed again.
more = Template("Answer: {{ gen('answer', max_tokens=8) }}").run(model, state=results[0].state)
assert str(more.state).startswith(results[0].text)
