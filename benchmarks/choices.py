"""Choices: how far from the model's own distribution over some texts a choice draws, and what a choice of whole texts costs.

    python -m scripts.real_model FOLDER           # the model; see docs/models.md
    python -m benchmarks.choices --model FOLDER   # two minutes

The reference is the model, conditioned on the texts: of each text the sum of `model.score`, without what goes on to a longer one of them.
Total variation of the law under a mask (`exact=False`, at both ends) and of 2,000 draws of the default; whether the most probable text
is the same. Fields of records of one enum: the same beside `state.alternatives`, of 200 draws with `exact_fields`, with processor times.
Cost: greedy choices with and without `exact`, in turn in one process; the smallest of some times. float32, two threads.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks import machine, table

_NUM_DRAWS = 2_000
PROMPTS: list[tuple[str, list[str]]] = [
    ("Their new hire is called", [" Sam", " Samir", " Sara", " Anna"]),
    ("The number of pages is", [" 1", " 10", " 100", " 12", " 2"]),
    ("The meeting is on", [" Monday", " Tuesday", " Mon", " the first day"]),
    ("The letter is dated", [" 2 Dec", " 12 June", " 1 May", " 31 October"]),
    ("My favourite colour is", [" blue", " blue green", " red", " dark red", " black"]),
    ("The parcel was sent to", [" New York", " Newark", " Paris", " the office"]),
    ("Review: I would buy it again.\nSentiment:", [" positive", " negative", " neutral", " very positive"]),
    ("The capital of Australia is", [" Sydney", " Canberra", " Melbourne", " Can"]),
    ("She works as a", [" teacher", " nurse", " teaching assistant", " doctor"]),
    ("The answer to the question is", [" yes", " no", " not known", " yes, of course"]),
    ("The invoice is due in", [" 30 days", " 3 days", " 30 days after delivery", " June"]),
    ("The best fruit is the", [" apple", " apricot", " pineapple", " pear"]),
]

FIELDS: list[tuple[str, str, list[str]]] = [
    ("Their new hire is called Sam.\n", "name", ["Sam", "Samir", "Sara", "Anna"]),
    ("The letter is from the second of December.\n", "date", ["2 Dec", "12 June", "1 May", "31 October"]),
    ("Review: I would buy it again.\n", "sentiment", ["positive", "negative", "neutral", "very positive"]),
    (
        "Two of our lamps arrived broken.\n",
        "kind",
        ["order", "complaint", "invoice", "change of address", "change of order"],
    ),
    ("The parcel goes to New York.\n", "to", ["New York", "Newark", "Paris", "the office"]),
    ("Priority of a fire in the office.\n", "priority", ["low", "lowest", "high", "highest", "medium"]),
]


def main() -> None:
    """Measure, print the tables and write them below `benchmarks/results`."""
    parser = table.parser(__doc__, "choices", rounds=5)
    parser.add_argument("--model", required=True, type=Path, help="folder of the model")
    options = parser.parse_args()
    described = machine.describe(("outlines-cont", "transformers", "torch"))
    from outlines_cont import models

    model = models.transformers(options.model, dtype="float32", prefix_cache_bytes=0)
    report = {
        "machine": described,
        "laws": laws(model),
        "fields": fields(model, options.rounds),
        "costs": costs(model, options),
    }
    table.show(options.output, report, page(report))


def page(report: dict[str, Any]) -> str:
    """The page of results."""
    how = " ".join((__doc__ or "").split("\n\n")[-1].split())
    head = ["after", "options", "mask, `eos`", "mask, `free`", "exact, drawn", "most probable: mask", "exact"]
    rows = [
        [
            repr(one["prompt"][-30:]),
            one["options"],
            one["eos"],
            one["free"],
            one["exact"],
            one["best_eos"],
            one["best_exact"],
        ]
        for one in report["laws"]
    ]
    mean = [sum(one[name] for one in report["laws"]) / len(rows) for name in ("eos", "free", "exact")]
    rows.append(["mean", "", *mean, "", ""])
    fields_head = ["field", "values", "mask", "exact, drawn", "mask", "exact", "time, mask = 1", "forwards", "mask"]
    names = ("field", "values", "masked", "exact", "best_masked", "best_exact", "ratio", "forwards", "mask_forwards")
    field_cells = [[one[name] for name in names] for one in report["fields"]]
    costs_head = ["tokens of the prompt", "options", "exact, ms", "mask, ms", "ratio", "forwards", "forwards, mask"]
    cells = [
        [one[name] for name in ("tokens", "options", "exact", "mask", "ratio", "forwards", "mask_forwards")]
        for one in report["costs"]
    ]
    return (
        f"# Choices\n\n{machine.sentence(report['machine'])} {how}\n\n## Total variation from the model's own distribution\n\n"
        f"{table.markdown(head, rows)}\n## Fields of records\n\n{table.markdown(fields_head, field_cells)}\n"
        f"## Cost of a choice\n\n{table.markdown(costs_head, cells)}"
    )


def laws(model: Any) -> list[dict[str, Any]]:
    """Return the total variation of each way to choose, after each prompt."""
    from outlines_cont import generate, samplers

    found = []
    for prompt, options in PROMPTS:
        law = reference(model, prompt, options)
        best = max(law, key=law.__getitem__)
        masks = {end: generate.choice(model, options, exact=False, end=end) for end in ("eos", "free")}
        masked = {end: dict(one.probabilities(prompt)) for end, one in masks.items()}
        draws = Counter(generate.choice(model, options, sampler=samplers.multinomial(_NUM_DRAWS))(prompt, rng=1))
        found.append(
            {
                "prompt": prompt,
                "options": len(options),
                "law": law,
                "masked": masked,
                **{end: variation(law, one) for end, one in masked.items()},
                "exact": variation(law, {option: draws[option] / _NUM_DRAWS for option in options}),
                "best_eos": "right" if masks["eos"](prompt) == best else "wrong",
                "best_exact": "right" if generate.choice(model, options)(prompt) == best else "wrong",
            }
        )
    return found


def reference(model: Any, prompt: str, options: list[str]) -> dict[str, float]:
    """Return the model's own distribution over options: of each the texts that begin with its tokens, and with those of no longer one."""
    before = model.tokenizer.encode(prompt)
    spelled = {option: model.tokenizer.encode_inside(option, before) for option in options}
    begin = {
        option: math.exp(float(one.sum())) for option, one in zip(options, model.score(prompt, options), strict=True)
    }
    own = {}
    for option, ids in spelled.items():
        longer = [other for other in options if len(spelled[other]) > len(ids) and spelled[other][: len(ids)] == ids]
        first = [
            other
            for other in longer
            if not any(spelled[other][: len(spelled[one])] == spelled[one] for one in longer if one != other)
        ]
        own[option] = begin[option] - sum(begin[other] for other in first)
    return {option: chance / sum(own.values()) for option, chance in own.items()}


def variation(first: dict[str, float], second: dict[str, float]) -> float:
    """Return the total variation of two distributions."""
    return sum(abs(first[option] - second[option]) for option in first) / 2


def fields(model: Any, rounds: int) -> list[dict[str, Any]]:
    """Return the total variation of both ways to write a field, and the processor time of a greedy record."""
    from outlines_cont import continuous, generate, samplers

    found = []
    for prompt, name, values in FIELDS:
        schema = {
            "type": "object",
            "properties": {name: {"enum": values}},
            "required": [name],
            "additionalProperties": False,
        }
        sides = {exact: continuous(generate.json(model, schema, exact_fields=exact)) for exact in (False, True)}
        times: dict[bool, list[float]] = {True: [], False: []}
        forwards: dict[bool, int] = {}
        states: dict[bool, Any] = {}
        for _ in range(rounds):
            for exact, write in sides.items():
                start = process_time()
                with model.meter() as meter:
                    states[exact] = write(prompt)
                times[exact].append(process_time() - start)
                forwards[exact] = meter.forwards
        law = states[False].alternatives(name)
        sampler = samplers.multinomial(_NUM_DRAWS // 10)
        draws = Counter(
            one[name] for one in generate.json(model, schema, sampler=sampler, exact_fields=True)(prompt, rng=1)
        )
        best = max(law.conditional, key=law.conditional.__getitem__)
        found.append(
            {
                "field": name,
                "values": len(values),
                "masked": variation(law.conditional, dict(law)),
                "exact": variation(law.conditional, {value: draws[value] / sampler.num_samples for value in law}),
                "best_masked": "right" if states[False].value[name] == best else "wrong",
                "best_exact": "right" if states[True].value[name] == best else "wrong",
                "ratio": min(times[True]) / min(times[False]),
                "forwards": forwards[True],
                "mask_forwards": forwards[False],
            }
        )
    return found


def costs(model: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the times of choices with and without `exact`."""
    from outlines_cont import generate

    rng, found = random.Random(0), []
    words = sorted({word for word in (__doc__ or "").split() if word.isalpha()})
    for repeats in (1, 8, 24):
        prompt = "The report names the following item as the most important: " * repeats + "it is"
        for size in (2, 8, 32, 128, 256):
            texts = list(dict.fromkeys(" " + " ".join(rng.sample(words, rng.choice((1, 2)))) for _ in range(2 * size)))[
                :size
            ]
            sides = {exact: generate.choice(model, texts, exact=exact) for exact in (True, False)}
            times: dict[bool, list[float]] = {True: [], False: []}
            forwards: dict[bool, int] = {}
            for _ in range(options.rounds):
                for exact, choose in sides.items():
                    with model.meter() as meter:
                        start = perf_counter()
                        choose(prompt)
                        times[exact].append((perf_counter() - start) * 1e3)
                    forwards[exact] = meter.forwards
            least = {exact: min(values) for exact, values in times.items()}
            found.append(
                {
                    "tokens": len(model.tokenizer.encode(prompt)),
                    "options": len(texts),
                    "exact": least[True],
                    "mask": least[False],
                    "ratio": least[True] / least[False],
                    "forwards": forwards[True],
                    "mask_forwards": forwards[False],
                }
            )
    return found


if __name__ == "__main__":
    main()
