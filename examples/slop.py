"""Banned phrases with factors from a list, as antislop-sampler has them, and a pattern: the same text with and without."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from outlines_cont import continuous, generate, models, policies, samplers

# The form of antislop's lists: 1 leaves a phrase as it is, 0 bans it.
PHRASES = [["eur", 0.0], ["Keller", 0.25], ["a testament to", 0.03]]


def main() -> None:
    model = models.tiny()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "slop.json"
        path.write_text(json.dumps(PHRASES))
        slop = policies.ban(policies.load_phrases(path))
    names = policies.ban(re.compile(r"city.{1,4}P\w{1,8}"))  # antislop's regex bans; here they stream
    write = generate.text(model, sampler=samplers.multinomial(temperature=0.7))
    prompt = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto. We pay 348.50 EUR.\nRecord: "
    print("without:", write(prompt, max_tokens=60, rng=1))
    print("with:   ", end=" ")
    for piece in write.stream(prompt, max_tokens=60, rng=1, policies=[slop, names]):
        print(piece, end="")  # what is shown is never taken back
    print()
    state = continuous(write)(prompt, max_tokens=60, rng=1, policies=[slop, names])
    print(int(state.retries), "retries")


if __name__ == "__main__":
    main()
