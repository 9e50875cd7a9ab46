"""Stream what another engine computes: it gives logits, `TokenStream` draws, finds stop texts and keeps characters whole."""

import torch

from outlines_cont import TokenStream, generate, models, samplers

PROMPT = "Message: This is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14. We pay 348.50 EUR.\nRecord: "


def main() -> None:
    model = models.tiny()
    sampler = samplers.multinomial(temperature=0.5, top_k=10)

    prompt = model.tokenizer.encode(PROMPT, add_special_tokens=True)
    other_engine = models.tiny().hugging_face  # a plain model of transformers, with a loop of one's own around it
    name = model.cache_argument  # "past_key_values" or, since transformers 5.24, "cache"
    stream = TokenStream(model.tokenizer, stop_at=['"price"'], prompt=prompt)
    cache, fed = None, torch.tensor([prompt])
    while not stream.finished and stream.num_tokens < 60:
        output = other_engine(fed, **{name: cache}, use_cache=True)  # one token per call
        stream = stream.push_logits(output.logits[0, -1], sampler, rng=7)
        cache, fed = output[name], torch.tensor([[stream.token_ids[-1]]])
        print(stream.new_text, end="", flush=True)
    print(f"\nended by {stream.stop.text!r} after {stream.num_tokens} tokens")

    # The same text as our own loop writes with the same seed.
    assert stream.text == generate.text(model, sampler=sampler)(PROMPT, stop_at='"price"', rng=7)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
