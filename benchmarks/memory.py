"""Memory: many different constraints, one after the other, over one vocabulary of 131,072 tokens; what stays after each lot.

    python -m benchmarks.memory                  # 5,000 patterns and schemas; some two minutes
    python -m benchmarks.memory --count 500 --max-cache-mb 16

Every constraint is made, walked along the beginning of a text with a mask at each byte, and dropped. No two are alike.
"""

from __future__ import annotations

import argparse
import gc
import random
from collections.abc import Iterator
from time import perf_counter

import fsm
from benchmarks.machine import pin, resident_mb, use_one_thread
from tests.vocabularies import tekken_token_bytes

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALPHABET = LETTERS + LETTERS.upper() + "0123456789"


def main() -> None:
    """Run the constraints and print a line for every tenth of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=5000, help="constraints (default: 5000)")
    parser.add_argument("--max-cache-mb", type=int, default=128, help="`max_cache_bytes` in MiB (default: 128)")
    options = parser.parse_args()
    use_one_thread()
    pin()
    tokens, eos = tekken_token_bytes()
    vocabulary = fsm.Vocabulary(tokens, eos, max_cache_bytes=options.max_cache_mb << 20)
    single = {token[0]: i for i, token in enumerate(tokens) if token and len(token) == 1}
    before, start = resident_mb(), perf_counter()
    print(f"vocabulary ready: {before:.0f} MB resident; cap of the caches: {options.max_cache_mb << 20:,} bytes")
    for number, (expression, text) in enumerate(constraints(options.count), 1):
        follow(fsm.TokenFSM(expression, vocabulary), [single[byte] for byte in text.encode()])
        del expression
        if number % max(options.count // 10, 1) == 0:
            gc.collect()
            print(
                f"{number:6,} constraints: {resident_mb() - before:6.1f} MB more resident, "
                f"{vocabulary.cache_nbytes / 1e6:6.1f} MB in caches, {perf_counter() - start:5.1f} s",
                flush=True,
            )


def follow(token_fsm: fsm.TokenFSM, token_ids: list[int]) -> None:
    state = token_fsm.initial_state
    for token_id in token_ids:
        token_fsm.bitmask(state)
        state = token_fsm.next_state(state, token_id)


def constraints(count: int) -> Iterator[tuple[fsm.Expression, str]]:
    """Patterns with a class of characters of their own, schemas with limits of their own, and some long enumerations."""
    source = random.Random(0)
    for number in range(count):
        names = ["".join(source.choices(LETTERS, k=8)) for _ in range(4)]
        if number % 2:
            letters = "".join(sorted(set(source.choices(ALPHABET, k=45))))
            pattern = f"{names[0]}[{letters}]{{2,9}}(, {names[1]}[0-9]+)*"
            yield fsm.regex(pattern), f"{names[0]}{letters[:4]}, {names[1]}12"
        else:
            size = 2000 if number % 50 == 0 else 8
            options = ["".join(source.choices(LETTERS, k=7)) for _ in range(size)]
            kinds = [
                {"enum": options},
                {"type": "string", "maxLength": source.randint(5, 100)},
                {"type": "integer", "minimum": source.randint(1, 1000)},
                {"type": "number"},
            ]
            schema = {"type": "object", "properties": dict(zip(names, kinds, strict=True)), "required": names}
            text = f'{{"{names[0]}": "{options[3]}", "{names[1]}": "ab", "{names[2]}": 1234'
            yield fsm.json_schema({**schema, "additionalProperties": False}), text


if __name__ == "__main__":
    main()
