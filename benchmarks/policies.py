"""Banned phrases: what a retry costs, against running again from text, and what a list of 5,000 phrases and a long text cost.

    python -m benchmarks.policies                 # a few minutes
    python -m benchmarks.policies --output ''     # prints, writes nothing

The bundled model, one thread of one core. Both sides of a comparison run in turn in one process. "Run again" is the way of
antislop-sampler in its plain form: `model.generate` of transformers, which stops where a phrase stands in the text, searched after
every token, and is called anew on all tokens before it, with the token that it begins with suppressed there.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from rich.console import Console

from benchmarks import machine, table
from outlines_cont import continuous, generate, models, policies, samplers

_PACKAGES = ("outlines-cont", "transformers", "torch")
_PROMPT = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14.\nRecord: "


def letters(count: int, seed: int) -> list[str]:
    """Phrases of two words that no text holds: pronounceable, five to nine letters each."""
    draw = random.Random(seed)
    word = lambda: "".join(draw.choice("bcdfghklmnprstvwz") + draw.choice("aeiou") for _ in range(draw.randint(3, 5)))  # noqa: E731
    return [f"{word()} {word()}" for _ in range(count)]


def retry(model: Any) -> dict[str, Any]:
    """Forwards and tokens of one retry: those of a text with it, less those of its tokens."""
    generator = continuous(generate.text(model, sampler=samplers.multinomial(temperature=1.0)))
    phrase = next(p for p in _words(generator(_PROMPT, max_tokens=60, rng=4).values[0][0]) if len(p) > 5)
    with model.meter() as meter:
        state = generator(_PROMPT, max_tokens=60, rng=4, policies=[policies.ban([phrase])])
    written = sum(kind == ord("g") for kind in state.rows[0][0].kinds)
    return {
        "phrase": phrase,
        "retries": int(state.retries.sum()),
        "sampled tokens": meter.sampled_tokens,
        "tokens kept": written,
        "forwards": meter.forwards,
        "tokens fed twice": meter.recomputed_tokens,
    }


def _words(text: str) -> list[str]:
    return [word.strip('",:{}') for word in text.replace('"', " ").split()]


def hits(model: Any, network: Any, rounds: int, num_tokens: int) -> dict[str, Any]:
    """A text in which bans are hit some 40 times, ours and with a new run from text after every hit."""
    banned = ["er", "Po", "ha", "de", "ar"]
    generator = continuous(generate.text(model, sampler=_endless(model)))
    times: dict[str, list[float]] = {"ours": [], "run again": []}
    found: dict[str, list[int]] = {"hits": [], "fed": [], "hits of the other": [], "fed of the other": []}
    for number in range(rounds):
        start = perf_counter()
        with model.meter() as meter:
            state = generator(
                _PROMPT, max_tokens=num_tokens, rng=number, policies=[policies.ban(banned, max_retries=None)]
            )
        times["ours"].append(perf_counter() - start)
        other = RunAgain(model, network, banned)
        start = perf_counter()
        other.write(num_tokens, number)
        times["run again"].append(perf_counter() - start)
        values = (int(state.retries.sum()), meter.fed_tokens, other.hits, other.fed)
        for name, value in zip(found, values, strict=True):
            found[name].append(value)
    return {name: statistics.median(values) for name, values in {**times, **found}.items()}


def _endless(model: Any) -> Any:
    """Draws at temperature 1, never the end of a text."""
    return samplers.multinomial(temperature=1.0, logit_bias=dict.fromkeys(model.eos_token_ids, -100.0))


class RunAgain:
    """The other side: `model.generate` on the whole text, again after every hit, with what was refused suppressed where it stood.

    Attributes:
        hits: how often a phrase was found.
        fed: tokens that went through the model.
    """

    def __init__(self, model: Any, network: Any, banned: Sequence[str]) -> None:
        self.network, self.tokenizer, self.banned = network, model.tokenizer, [phrase.lower() for phrase in banned]
        self.eos = sorted(model.eos_token_ids)
        self.prompt = model.tokenizer.encode(_PROMPT, add_special_tokens=True)
        self.hits = self.fed = 0

    def write(self, num_tokens: int, seed: int) -> None:
        """Write a text of `num_tokens`."""
        torch.manual_seed(seed)
        ids, refused = list(self.prompt), dict[int, set[int]]()
        length = len(ids) + num_tokens
        hook = self.network.register_forward_pre_hook(self._count, with_kwargs=True)
        while len(ids) < length:
            given = torch.tensor([ids])
            written = self.network.generate(
                given, attention_mask=torch.ones_like(given), max_length=length, min_length=length, do_sample=True, top_k=0,
                pad_token_id=self.eos[0], stopping_criteria=[self._stops], logits_processor=[self._suppressing(refused)],
            )  # fmt: skip
            ids = written[0].tolist()
            cut = self._cut(ids)
            if cut is not None:
                self.hits += 1
                refused = {place: gone for place, gone in refused.items() if place <= cut}
                refused.setdefault(cut, set()).add(ids[cut])
                ids = ids[:cut]
        hook.remove()

    def _count(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.fed += kwargs["input_ids"].shape[1]

    def _suppressing(self, refused: dict[int, set[int]]) -> Any:
        def suppress(input_ids: Any, scores: Any) -> Any:
            scores[:, [*self.eos, *refused.get(input_ids.shape[1], ())]] = -torch.inf
            return scores

        return suppress

    def _stops(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.tensor([self._cut(input_ids[0].tolist()) is not None])

    def _cut(self, ids: list[int]) -> int | None:
        """Return the index of the token that a phrase begins in; None where there is none."""
        text = self.tokenizer.decode(ids[len(self.prompt) :]).lower()
        start = min((text.find(phrase) for phrase in self.banned if phrase in text), default=None)
        if start is None:
            return None
        at = len(ids)
        while len(self.tokenizer.decode(ids[len(self.prompt) : at])) > start:
            at -= 1
        return at


def long_text(model: Any, num_tokens: int) -> dict[str, float]:
    """Microseconds that 5,000 phrases take per token in each fifth of a long text, without the model."""
    ban = policies.ban(letters(5000, 1), alternatives=1).for_model(model)
    text = "Hello, this is Marta Keller. Please send 12 desk lamps to Porto. "
    ids = model.tokenizer.encode_inside(text * (num_tokens // 10), ())[:num_tokens]
    state = ban._scan.initial(None, include_prompt=False)  # type: ignore[arg-type]
    found = {}
    part = num_tokens // 5
    for number in range(5):
        start = perf_counter()
        for token_id in ids[number * part : (number + 1) * part]:
            state = ban.advance(state, token_id)
        found[f"tokens {number * part:,} to {(number + 1) * part:,}"] = (perf_counter() - start) / part * 1e6
    return found


def many_phrases(model: Any, rounds: int, num_tokens: int) -> dict[str, float]:
    """Milliseconds per token of free text without phrases, and with 5,000."""
    generator = generate.text(model, sampler=_endless(model))
    started = perf_counter()
    ban = policies.ban(letters(5000, 1))
    made = perf_counter() - started
    times: dict[str, list[float]] = {"none": [], "5,000 phrases": []}
    for number in range(rounds + 1):
        for name, chosen in (("none", []), ("5,000 phrases", [ban])):
            start = perf_counter()
            state = continuous(generator)(_PROMPT, max_tokens=num_tokens, rng=number, policies=chosen)
            if number:
                times[name].append((perf_counter() - start) / len(state.rows[0][0].token_ids) * 1e3)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {**medians, "ratio": medians["5,000 phrases"] / medians["none"], "seconds to make": made}


def _network() -> Any:
    """The bundled model as transformers opens it."""
    from importlib.resources import as_file, files

    from transformers import AutoModelForCausalLM

    with as_file(files("outlines_cont.models") / "tiny") as folder:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)


def main() -> None:
    """Measure, print the table and write it below `benchmarks/results`."""
    options = _options()
    machine.use_one_thread()
    machine.pin(options.core)
    torch.set_num_threads(1)
    model = models.tiny()
    report = {
        "machine": machine.describe(_PACKAGES),
        "settings": vars(options),
        "retry": retry(model),
        "hits": hits(model, _network(), options.rounds, options.tokens),
        "long text": long_text(model, 10_000),
        "phrases": many_phrases(model, 2 * options.rounds, 100),
    }
    text = _page(report)
    Console(width=200, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, report, text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side (default: 3)")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the text with hits (default: 512)")
    parser.add_argument("--core", type=int, help="processor core to run on (default: the last)")
    parser.add_argument("--output", default="policies", help="name below benchmarks/results; empty: write nothing")
    return parser.parse_args()


def _page(report: dict[str, Any]) -> str:
    once, many, long, some = (report[name] for name in ("retry", "hits", "long text", "phrases"))
    tokens = report["settings"]["tokens"]
    rows = [
        [f"retry after {once['phrase']!r}: tokens fed twice", once["tokens fed twice"], "0"],
        [
            "the same: forwards beyond one per token, retries left out",
            once["forwards"] - once["sampled tokens"] + once["retries"],
            "0",
        ],
        [f"{tokens} tokens, {many['hits']:.0f} hits: seconds", many["ours"], None],
        [
            f"{tokens} tokens, {many['hits of the other']:.0f} hits, run again from text: seconds",
            many["run again"],
            None,
        ],
        ["the same: ratio of seconds", many["run again"] / many["ours"], ">= 10"],
        ["the same: ratio of tokens fed", many["fed of the other"] / many["fed"], None],
        *([f"5,000 phrases, {name}: us per token", value, "constant"] for name, value in long.items()),
        ["a step without phrases: ms", some["none"], None],
        ["a step with 5,000 phrases: ms", some["5,000 phrases"], None],
        ["the same: ratio", some["ratio"], "<= 1.2"],
        ["5,000 phrases: seconds to make the automaton", some["seconds to make"], None],
    ]
    return (
        f"# Banned phrases\n\n{machine.sentence(report['machine'])} The bundled model, one core and one thread.\n\n"
        + table.markdown(["what", "measured", "aim"], rows)
    )


if __name__ == "__main__":
    main()
