"""Streams: what stop texts, events and decoding add to the loop, and whether a token costs the same late in a long text.

    python -m benchmarks.streams                 # a minute or two
    python -m benchmarks.streams --rounds 3 --long 2000 --output ''

One thread of one core; processor time, so what else the machine does counts little. The sides run in turn, round after round, in one
process: the bare loop (a generator that is called, free text, greedy), the same with three stop texts that never come, and a stream of
events with them, whose texts are joined. A loop over transformers by hand stands beside them. For long texts the time of a step is
told with the network, whose attention grows with the text, and without it; the first and the last thousand steps take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import process_time
from typing import Any

from benchmarks import machine, table

_PACKAGES = ("outlines-cont", "transformers", "torch")
_STOPS = ["\nUser:", "</answer>", "never written"]
_WINDOW = 1000
Side = Callable[[], int]


def sides(model: Any, prompt: str, num_tokens: int) -> dict[str, Side]:
    """Return what is compared: each writes and returns how many tokens it has written."""
    import torch

    from outlines_cont import continuous, generate

    free = continuous(generate.text(model))
    options: dict[str, Any] = {"max_tokens": num_tokens, "min_tokens": num_tokens}

    def written(state: Any) -> int:
        return len(state.rows[0][0].token_ids) - state.rows[0][0].piece.start

    def streamed(**shown: Any) -> int:
        texts, count = [], 0
        for event in free.stream(prompt, stop_at=_STOPS, **shown, **options):
            texts.append(event.text)
            count += len(event.token_ids)
        assert "".join(texts)
        return count

    def by_hand() -> int:
        token_ids = torch.tensor([model.tokenizer.encode(prompt, add_special_tokens=True)])
        cache, count = None, 0
        with torch.inference_mode():
            while count < num_tokens:
                output = model.hugging_face(
                    token_ids, **{model.cache_argument: cache}, use_cache=True, logits_to_keep=1
                )
                cache, token_ids, count = output[model.cache_argument], output.logits[:, -1:].argmax(-1), count + 1
        return count

    return {
        "bare loop": lambda: written(free(prompt, **options)),
        "with stops": lambda: written(free(prompt, stop_at=_STOPS, **options)),
        "stream: stops, events": streamed,
        "stream: stops, events, top=5": lambda: streamed(top=5),
        "transformers by hand": by_hand,
    }


def measure(chosen: dict[str, Side], rounds: int) -> dict[str, list[float]]:
    """Return the seconds per token of each side, round by round; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for number in range(rounds + 1):
        for name, side in chosen.items():
            started = process_time()
            count = side()
            if number:
                times[name].append((process_time() - started) / count)
    return times


class Steps:
    """A stream over a tiny network, step by step: how long each takes, with the network and without."""

    def __init__(self, num_tokens: int) -> None:
        import torch
        import transformers

        from benchmarks.rig import byte_tokenizer
        from outlines_cont import continuous, generate, models

        config = transformers.LlamaConfig(
            vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=2 * num_tokens, eos_token_id=None, bos_token_id=None,
        )  # fmt: skip
        torch.manual_seed(0)
        network = transformers.LlamaForCausalLM(config).eval()
        self._forward, self._inside = network.forward, 0.0
        network.forward = self._timed
        generator = continuous(generate.text(models.from_transformers(network, byte_tokenizer())))
        self._events = iter(generator.stream("a", stop_at=_STOPS, max_tokens=num_tokens + 1))

    def step(self) -> tuple[float, float]:
        """Take a step; return its seconds, and those outside the network."""
        self._inside, started = 0.0, process_time()
        next(self._events)
        seconds = process_time() - started
        return seconds, seconds - self._inside

    def _timed(self, *arguments: Any, **options: Any) -> Any:
        started = process_time()
        output = self._forward(*arguments, **options)
        self._inside += process_time() - started
        return output


def long_text(num_tokens: int) -> dict[str, float]:
    """Return microseconds per token of a stream at the beginning of a text and at its end, step by step in turn."""
    window = min(_WINDOW, num_tokens // 4)
    early, late = Steps(num_tokens), Steps(num_tokens)
    for _ in range(num_tokens - window):
        late.step()
    times = [(early.step(), late.step()) for _ in range(window)]
    return {
        f"{place}, {what}": 1e6 * statistics.median(pair[at][part] for pair in times)
        for at, place in enumerate(("first", "last"))
        for part, what in enumerate(("whole step", "without the network"))
    }


def page(report: dict[str, Any]) -> str:
    """Return the results for reading."""
    rows = []
    for name, times in report["sides"].items():
        bare = times["bare loop"]
        for side, found in times.items():
            ratios = [own / base for own, base in zip(found, bare, strict=True)]
            rows.append([f"{name}: {side}", 1e6 * statistics.median(found), f"{statistics.median(ratios):.3f}x"])
    long = report["long"]
    lines = [
        [what, long[f"first, {what}"], long[f"last, {what}"], f"{long[f'last, {what}'] / long[f'first, {what}']:.2f}x"]
        for what in ("whole step", "without the network")
    ]
    return "\n".join(
        [
            f"# Streams\n\n{machine.sentence(report['machine'])} One thread; medians of {report['rounds']} rounds.\n",
            table.markdown(["model: side", "us per token", "over the bare loop"], rows),
            f"A text of {report['num_long']:,} tokens, one layer of width 32; medians of a thousand steps:\n",
            table.markdown(["", "first, us", "last, us", "last over first"], lines),
        ]
    )


def main() -> None:
    """Measure, print and write."""
    parser = table.parser(__doc__, "streams", 15)
    parser.add_argument("--long", type=int, default=10_000, help="tokens of the long text")
    chosen = parser.parse_args()
    machine.use_one_thread()
    machine.pin()

    import torch

    from benchmarks.rig import Rig
    from outlines_cont import models

    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine.describe(_PACKAGES), "rounds": chosen.rounds, "num_long": chosen.long}
    prompt = "Message: Please send 12 desk lamps to Porto by 2031-05-14. We pay 348.50 EUR.\nRecord: "
    rig = Rig("cpu")
    report["sides"] = {
        "bundled model": measure(sides(models.tiny(), prompt, 128), chosen.rounds),
        "8 layers of 512": measure(sides(rig.model, rig.text(32), 48), chosen.rounds),
    }
    report["long"] = long_text(chosen.long)
    table.show(chosen.output, report, page(report))


if __name__ == "__main__":
    main()
