"""Every feature behind an image, in a family whose positions differ from indices: texts and log-probabilities are those of one forward."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from pydantic import BaseModel

from outlines_cont import (
    BatchedExecutor,
    Branch,
    Guidance,
    SequenceState,
    Thinking,
    continuous,
    control,
    generate,
    models,
    policies,
    samplers,
)
from outlines_cont.errors import ImageLost, NotRecomputable, OptionError, UnsupportedBranch, UnsupportedModel
from tests.image_models import image_model, parts, picture
from tests.images.oracle import evict_all, whole_logits, worst_error

_EXACT = 1e-4
_DRAWN = samplers.multinomial()


class Total(BaseModel):
    paid: bool
    total: int


def _model() -> Any:
    return image_model("qwen2_5_vl")


def _state(seed: int = 1) -> SequenceState:
    return _model().see("Read this: <image>\nAnswer: ", [picture(seed)], rng=5)


CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "json": (lambda model: generate.json(model, Total, sampler=_DRAWN), {"max_tokens": 40}),
    "healing": (lambda model: generate.text(model, sampler=_DRAWN), {"max_tokens": 6, "min_tokens": 6, "heal": True}),
    "stop": (lambda model: generate.text(model, sampler=_DRAWN), {"max_tokens": 8, "stop_at": "e"}),
    "bans": (
        lambda model: generate.text(model, sampler=_DRAWN),
        {"max_tokens": 8, "min_tokens": 8, "policies": [policies.ban(["e", "a"])]},
    ),
    "draft": (lambda model: generate.regex(model, "[a-z ]{12}", force=False), {"max_tokens": 12, "draft": "lookup"}),
    "guidance": (lambda model: generate.text(model), {"max_tokens": 6, "min_tokens": 6, "guidance": Guidance("Answer: ", 1.5)}),
    "choice": (lambda model: generate.choice(model, ["red", "green", "reddish"]), {}),
    "conditional": (lambda model: generate.regex(model, "[a-z]{3}", sampler=samplers.conditional(1, particles=12)), {}),
    "best": (lambda model: generate.text(model, sampler=samplers.best_of(3)), {"max_tokens": 4, "min_tokens": 4}),
    "thoughts": (lambda model: generate.regex(model, "[0-9]{2}", thinking=Thinking(begin="(", end=")", max_tokens=4)), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_exact_and_see_again_what_was_evicted(name: str) -> None:
    make, options = CALLS[name]
    model, state = _model(), _state()
    write = continuous(make(model))
    found = write(state, **options, rng=2)
    assert worst_error(model, found) < _EXACT
    evict_all(model)
    model.prefix_cache.clear()  # of what other tests have seen
    with model.meter() as meter:
        again = write(state, **options, rng=2)
    assert meter.images == 1
    assert again.generated == found.generated
    assert worst_error(model, again) < _EXACT


def test_beams_streams_and_samples() -> None:
    model, state = _model(), _state()
    beams = continuous(generate.text(model, sampler=samplers.beam_search(3)))(state, max_tokens=4, min_tokens=4)
    assert worst_error(model, beams) < _EXACT
    write = continuous(generate.text(model, sampler=samplers.multinomial(3)))
    stream = write.stream(state, max_tokens=5, min_tokens=5, rng=1)
    for _ in stream:
        pass
    assert stream.state.generated == write(state, max_tokens=5, min_tokens=5, rng=1).generated
    assert worst_error(model, stream.state) < _EXACT


@pytest.mark.parametrize("family", ["gemma3", "llava"])
def test_healing_removes_no_token_of_an_image(family: str) -> None:
    """Gemma 3 writes line breaks around an image, which a longer token begins with."""
    model = image_model(family)
    state = model.see("The name <image>", [picture()], rng=1)
    found = continuous(generate.text(model, sampler=_DRAWN))(state, max_tokens=3, min_tokens=3, heal=True)
    assert found.rows[0][0].token_ids[: state.shape[2]] == state.rows[0][0].token_ids
    assert found.rows[0][0].images == state.rows[0][0].images
    assert worst_error(model, found) < _EXACT


def test_a_stream_that_was_cut_is_resumed_from_a_file_and_weighs_as_the_whole() -> None:
    model, state = _model(), _state()
    write = continuous(generate.regex(model, "[a-z]{2} [0-9]{2}", force=False, sampler=_DRAWN))
    whole, file = write(state, max_tokens=12, rng=3), io.BytesIO()
    stream = write.stream(state, max_tokens=2, rng=3)
    for _ in stream:
        pass
    stream.state.save(file, kv=False)
    file.seek(0)
    evict_all(model)
    resumed = write.resume(SequenceState.load(file, model), max_tokens=10)
    assert resumed.generated == whole.generated
    assert worst_error(model, resumed) < _EXACT
    row = whole.rows[0][0]
    span = range(row.piece.start, len(row.token_ids))
    assert float(whole.importance) == pytest.approx(sum(row.logprobs[i] - row.sampling_logprobs[i] for i in span), abs=1e-3)
    assert whole.log_z.value.shape == (1,)


def test_scores_and_probabilities_are_those_of_the_plain_way() -> None:
    model, state = _model(), _state()
    row = state.rows[0][0]
    scores, stop = state.score()[0, 0], row.images[0].stop
    logprobs = whole_logits(model, row).log_softmax(-1)
    assert scores[: stop + 1].isnan().all()
    wanted = [float(logprobs[i - 1, row.token_ids[i]]) for i in range(stop + 1, len(row.token_ids))]
    assert scores[stop + 1 :].tolist() == pytest.approx(wanted, abs=_EXACT)
    both = [model.score(_state(seed), "red").sum() for seed in (1, 2)]
    assert both[0] != both[1]
    choice = generate.choice(model, ["red", "green"])
    found = [choice.probabilities(_state(seed)) for seed in (1, 2, 1)]
    assert found[0] == found[2] != found[1]


def test_a_controller_rewinds_to_an_image_and_not_into_it() -> None:
    model, state = _model(), _state()
    span, length = state.rows[0][0].images[0], state.shape[2]
    so = model.tokenizer.encode_inside(" so", [])

    def back_to(index: int) -> Any:
        turns: list[int] = []

        def controller(*_: Any) -> list[Branch]:
            turns.append(1)
            return [Branch(backtrack=length - index, ff_tokens=[so])] if len(turns) == 1 else []

        return controller

    def run(index: int) -> Any:
        return control.run(model, back_to(index), state, check=False)

    assert "<image> so" in str(run(span.stop).state)
    removed = run(span.start).state
    assert "<image>" not in str(removed)
    assert removed.rows[0][0].images == ()
    with pytest.raises(UnsupportedBranch, match="an image that begins"):
        raise run(span.start + 2).errors[0]


def test_a_conversation_begins_with_an_image() -> None:
    model, state = _model(), _state()
    with BatchedExecutor(model) as executor:
        conversation = executor.create(state)
        conversation.prompt("so ")
        executor.infer()
        token_id = conversation.sample(samplers.greedy())
        written = conversation.state
        wanted = int(whole_logits(model, (state + "so ").rows[0][0])[-1].argmax())
        assert token_id == wanted
        conversation.drop(2, written.rows[0][0].images[0].start + 1)  # into the image, which goes as a whole
        assert "<image>" not in str(conversation.state)


def test_negative_prompts_and_states_of_two_models() -> None:
    text = models.tiny()
    with pytest.raises(UnsupportedModel, match="takes no images"):
        text.see("<image>", [picture()])
    assert not text.capabilities.images
    blind = models.from_transformers(parts("llava")[0], parts("llava")[1].tokenizer)
    with pytest.raises(UnsupportedModel, match="pass its processor"):
        blind.see("<image>", [picture()])
    assert generate.text(blind)("A text alone", max_tokens=1) is not None


def test_images_without_their_pixels_are_pinned_or_said_to_be_lost() -> None:
    model = models.from_transformers(*parts("llava"))
    write = continuous(generate.text(model))
    pinned = model.see("Look: <image> and", [picture()], keep_pixels=False)
    evict_all(model)
    assert worst_error_of_pinned(model, write(pinned, max_tokens=3, min_tokens=3))
    with pytest.raises(NotRecomputable):
        pinned.detach_cache()
    kept = model.see("Look: <image> and", [picture()])
    assert len(model.pixels) == 1
    model.pixels.max_bytes = 0
    assert len(model.pixels) == 0
    assert write(kept, max_tokens=1).errors == [[None]]
    with pytest.raises(ImageLost, match="cannot|can be seen again"):
        kept.detach_cache()
    evict_all(model)
    with model.meter() as meter, pytest.raises(ImageLost):
        generate.text(model)(kept, max_tokens=1)
    assert meter.forwards == 0


def worst_error_of_pinned(model: Any, state: SequenceState) -> bool:
    """Whether a state whose pixels were not kept is that of one that has them."""
    with_pixels = model.see("Look: <image> and", [picture()])
    again = continuous(generate.text(model))(with_pixels, max_tokens=3, min_tokens=3)
    return bool(again.generated == state.generated and worst_error(model, again) < _EXACT)


@pytest.mark.parametrize(
    ("prompt", "images", "message"),
    [
        ("no place", [0], "got 0 for 1 images"),
        ("<image> <image>", [0], "got 2 for 1 images"),
        (["<image>", "<image>"], [0], "a list with the images of each of 2 texts"),
    ],
)
def test_a_text_has_a_place_for_each_image(prompt: Any, images: list[int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        image_model().see(prompt, [picture(i) for i in images])


def test_a_batch_has_ragged_images_and_texts_without_any() -> None:
    model = _model()
    batch = model.see(["A <image> and <image>.", "None.", "<image>"], [[picture(1), picture(2, (40, 24))], [], [picture(3)]], rng=[1, 2, 3])
    written = continuous(generate.text(model))(batch, max_tokens=4, min_tokens=4)
    assert worst_error(model, written) < _EXACT
    assert [len(group[0].images) for group in written.rows] == [2, 0, 1]
    alone = continuous(generate.text(model))(batch[0, :, :], max_tokens=4, min_tokens=4)
    assert alone.generated == written.generated[0][0]


def test_the_inspector_tells_images_with_equal_ids_apart(tmp_path: Any) -> None:
    model = image_model()
    both = model.see(["Look: <image>", "Look: <image>"], [[picture(1)], [picture(2)]])
    assert both.rows[0][0].token_ids == both.rows[1][0].token_ids
    file = tmp_path / "page.html"
    both.inspect(file, top=2)
    page = file.read_text()
    assert all(group[0].images[0].digest in page for group in both.rows)
    assert json.dumps("<image>")[1:-1] in page.replace("\\u003c", "<").replace("\\u003e", ">")


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_images_are_exact_where_there_is_little_room_for_keys_and_values(family: str) -> None:
    def written(budget: int | None) -> Any:
        model = models.from_transformers(*parts(family), kv_budget_bytes=budget, prefix_cache_bytes=0)
        batch = model.see(["Look: <image> and"] * 4, [[picture(i)] for i in range(4)], rng=[1, 2, 3, 4])
        found = continuous(generate.text(model))(batch, max_tokens=4, min_tokens=4)
        assert worst_error(model, found) < _EXACT
        return found.generated

    # A token has 256 bytes: two layers, keys and values, two heads of eight numbers. All rows need 60 to 90 tokens, one of them 16 to 20.
    assert written(None) == written(60 * 256) == written(45 * 256)
