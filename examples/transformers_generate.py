"""A constraint in `model.generate` of transformers: a batch, beams, and a text that is cut and goes on. No generator of ours runs."""

from typing import Literal

from pydantic import BaseModel

from outlines_cont import adapters, models

PROMPTS = [
    "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto, 348.50 EUR.\nRecord: ",
    "Message: Hello, this is Ian Moss. We need 3 chairs for 90 GBP.\nRecord: ",
]


class Order(BaseModel):
    customer: str
    quantity: int
    currency: Literal["EUR", "USD", "GBP", "JPY"]


def main() -> None:
    bundled = models.tiny()
    model, tokenizer = bundled.hugging_face, bundled.tokenizer.hugging_face
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"

    processor = adapters.logits_processor(Order, tokenizer)
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    width = inputs["input_ids"].shape[1]

    def texts(rows, start=width):
        return [tokenizer.decode(row[start:], skip_special_tokens=True) for row in rows]

    steered = {"logits_processor": [processor.of(inputs)], "do_sample": False}
    whole = model.generate(**inputs, **steered, max_new_tokens=60)
    for text in texts(whole):
        print("greedy:", Order.model_validate_json(text))
    for text in texts(model.generate(**inputs, **steered, max_new_tokens=60, num_beams=3)):
        print("beams: ", Order.model_validate_json(text))

    # Cut after a few tokens, and given to `generate` again: the text begins where these inputs end.
    one = tokenizer(PROMPTS[1], return_tensors="pt")
    ids = one["input_ids"]
    bound = {"logits_processor": [processor.of(one)], "do_sample": False}
    while ids[0, -1] != tokenizer.eos_token_id:
        print("so far:", texts(ids, one["input_ids"].shape[1])[0])
        ids = model.generate(ids, attention_mask=ids.new_ones(ids.shape), **bound, max_new_tokens=8)
    assert texts(ids, one["input_ids"].shape[1])[0] == texts(whole)[1]


if __name__ == "__main__":
    main()
