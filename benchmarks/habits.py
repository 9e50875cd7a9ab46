"""What healing, bans, drafts, beams and guidance do on a real chat model: counts of answers, forwards and tokens.

    python -m scripts.real_model FOLDER           # the model; see docs/models.md
    python -m benchmarks.habits --model FOLDER    # some minutes

Greedy, float32, one thread, questions of `benchmarks.quality_tasks`. Healing: free replies are cut within a word, and count if they
continue with the same ten characters. Drafts and beams: JSON, one question after the other. Guidance: away from the same question without
its text.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine, table
from benchmarks.quality_library import Library, score
from benchmarks.quality_tasks import Task, tasks

_PACKAGES = ("outlines-cont", "transformers", "torch")
_NUM_AHEAD = 10  # characters
_BANNED = ["is", "the answer"]
_MAX_TOKENS = 60
Row = list[Any]


def main() -> None:
    """Measure, print the tables and write them below `benchmarks/results`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.habits", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, type=Path, help="folder of the model")
    parser.add_argument("--every", type=int, default=3, help="ask every n-th question only (default: 3)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--output", default="habits", help="name below benchmarks/results; empty: write nothing")
    options = parser.parse_args()
    machine.use_one_thread()
    described = machine.describe(_PACKAGES)
    import torch

    torch.set_num_threads(1)
    library, asked = Library(options.model), tasks()[:: options.every]
    found = {part: PARTS[part](library, asked) for part in options.parts.split(",")}
    report = {"machine": described, "settings": {"questions": len(asked)}, "parts": found}
    text = page(report)
    Console(width=200, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, report, text)


def page(report: dict[str, Any]) -> str:
    """The page of results."""
    how = " ".join((__doc__ or "").split("\n\n")[-1].split())
    parts = [f"# Habits\n\n{machine.sentence(report['machine'])} {report['settings']['questions']} questions. {how}\n"]
    for name, rows in report["parts"].items():
        parts += [f"## {name[0].upper()}{name[1:]}\n", table.markdown(rows[0], rows[1:])]
    return "\n".join(parts)


def healing(library: Library, asked: Sequence[Task]) -> list[Row]:
    """How often a reply that was cut within a word goes on as it did."""
    from outlines_cont import Tokens, continuous, generate

    write = continuous(generate.text(library.model))
    replies = library.ours(asked, generate.text(library.model), [task.question for task in asked])
    cuts = [(task, reply, _within_a_word(reply)) for task, reply in zip(asked, replies, strict=True)]
    cuts = [(task, reply, at) for task, reply, at in cuts if at and len(reply) >= at + _NUM_AHEAD]
    rows: list[Row] = [["prompt ends within a word", "continues as the reply did"]]
    for name, heal in (("as it is", False), ("`heal=True`", True)):
        prompts: list[Any] = [
            Tokens.of(library.prompt(task.question, task.lead) + reply[:at], special=True) for task, reply, at in cuts
        ]
        state = write(prompts, max_tokens=12, heal=heal)
        texts = [text for group in state.generated for text in ([group] if isinstance(group, str) else group)]
        right = 0
        for text, (_, reply, at) in zip(texts, cuts, strict=True):
            right += text.startswith(reply[at : at + _NUM_AHEAD])
        rows.append([name, f"{right} of {len(cuts)}"])
    return rows


def _within_a_word(text: str) -> int:
    """Return a position in the middle of the first word of five letters or more after the third; 0 if there is none."""
    start = 0
    for number, word in enumerate(text.split(" ")):
        if number >= 3 and len(word) >= 5 and word.isalpha():
            return start + len(word) // 2
        start += len(word) + 1
    return 0


def bans(library: Library, asked: Sequence[Task]) -> list[Row]:
    """Replies with what is banned, and what it costs to write others."""
    from outlines_cont import Tokens, continuous, generate, policies

    prompts: list[Any] = [Tokens.of(library.prompt(task.question, ""), special=True) for task in asked]
    ban = policies.ban(_BANNED, whole_word=True)
    rows: list[Row] = [["policy", "replies with `is` or `the answer`", "retries", "forwards", "tokens drawn"]]
    for name, given in (("none", []), ("`ban([...], whole_word=True)`", [ban])):
        with library.model.meter() as meter:
            state = continuous(generate.text(library.model))(prompts, max_tokens=_MAX_TOKENS, policies=given)
        texts = [group[0] if isinstance(group, list) else group for group in state.generated]
        count = sum(any(f" {phrase} " in f" {text.lower()} " for phrase in _BANNED) for text in texts)
        rows.append([name, f"{count} of {len(texts)}", int(state.retries.sum()), meter.forwards, meter.sampled_tokens])
    return rows


def drafts(library: Library, asked: Sequence[Task]) -> list[Row]:
    """How many forwards JSON takes with and without prompt lookup."""
    rows: list[Row] = [
        ["draft", "forwards", "tokens", "forwards per token", "guessed", "of these right", "fields right"]
    ]
    for name, draft in (("none", None), ('`draft="lookup"`', "lookup")):
        answered = [task for task in asked if task.kind in ("record", "arguments")]
        with library.model.meter() as meter:
            texts = [_json_of(library, task, draft=draft).generated for task in answered]
        tokens = meter.sampled_tokens + meter.forced_tokens
        counts = [meter.forwards, tokens, meter.forwards / tokens, meter.proposed_tokens, meter.accepted_tokens]
        rows.append([name, *counts, _right(answered, texts)])
    return rows


def beams(library: Library, asked: Sequence[Task]) -> list[Row]:
    """Whether more probable records are right more often."""
    from outlines_cont import samplers

    rows: list[Row] = [["sampler", "log-probability of a record, mean", "forwards", "fields right"]]
    answered = [task for task in asked if task.kind == "record"]
    for name, sampler in (("`greedy()`", samplers.greedy()), ("`beam_search(4)`", samplers.beam_search(4))):
        with library.model.meter() as meter:
            found = [_json_of(library, task, sampler=sampler).rows[0][0] for task in answered]
        texts = [
            row.text(library.model.tokenizer)[len(_prompt(library, task)) :]
            for task, row in zip(answered, found, strict=True)
        ]
        mean = sum(row.weight for row in found) / len(found)
        rows.append([name, mean, meter.forwards, _right(answered, texts)])
    return rows


def _json_of(library: Library, task: Task, draft: str | None = None, **options: Any) -> Any:
    """Return the state of an answer in JSON."""
    from outlines_cont import Tokens, continuous, generate

    write = continuous(generate.json(library.model, task.form, **options))
    return write(Tokens.of(_prompt(library, task), special=True), max_tokens=_MAX_TOKENS, draft=draft)


def _prompt(library: Library, task: Task) -> str:
    return library.prompt(task.question, task.lead)


def _right(asked: Sequence[Task], texts: Sequence[str]) -> str:
    right, count = zip(*(score(task, text) for task, text in zip(asked, texts, strict=True)), strict=True)
    return f"{sum(right)} of {sum(count)}"


def guidance(library: Library, asked: Sequence[Task]) -> list[Row]:
    """Whether a choice is right more often if what the model would choose without the text counts less; all choices are asked."""
    from outlines_cont import Guidance, Tokens, generate

    answered = [task for task in tasks() if task.kind == "choice"]
    rows: list[Row] = [["guidance", "choices right", *answered[0].form]]
    write = generate.choice(library.model, answered[0].form)
    prompts: list[Any] = [Tokens.of(_prompt(library, task), special=True) for task in answered]
    blank = [task.question[: task.question.rindex(": ") + 2] for task in answered]
    negative: list[Any] = [Tokens.of(library.prompt(question, ""), special=True) for question in blank]
    for scale in (1.0, 1.5, 2.0):
        texts = write(prompts, guidance=[Guidance(one, scale=scale) for one in negative])
        rows.append([f"scale {scale}", _right(answered, texts), *(texts.count(option) for option in answered[0].form)])
    return rows


PARTS: dict[str, Callable[[Library, Sequence[Task]], list[Row]]] = {
    "healing": healing,
    "bans": bans,
    "drafts": drafts,
    "beams": beams,
    "guidance": guidance,
}


if __name__ == "__main__":
    main()
