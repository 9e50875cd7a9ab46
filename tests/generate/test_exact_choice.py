"""Choices of whole texts: against a walk over all tokens, draws, plain scores, and the same call in every other form."""

from __future__ import annotations

import asyncio
import itertools
import math
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import Template, Thinking, continuous, engine_of, generate, models, policies, samplers
from outlines_cont.errors import DeadEnd, InvalidLogits, OptionError
from outlines_cont.generation.exact_choice import MAX_OPTIONS, MAX_UNPRICED, temperature_of
from outlines_cont.models import HuggingFaceModel
from outlines_cont.sampling.random_stream import RandomStream
from tests.fakes import EOS, FakeTokenizer, failing, fresh_model, random_model, random_network, recurrent_network, saying, scripted_model
from tests.oracle import plain_logs

PROMPT = "the name is>"
NESTED = ["yes", "yes, the red", "no", "not at all", "green"]
_MORE = ["yes", "yes, the", "yes, the red", "the re", "the red", "12", "1", "n"]


def _ids(model: HuggingFaceModel, prompt: str = PROMPT) -> tuple[int, ...]:
    return tuple(model.tokenizer.encode(prompt, add_special_tokens=True))


def _walked(model: HuggingFaceModel, options: Sequence[str], end: str, prompt: str = PROMPT) -> dict[str, float]:
    """The law by its definition: all next tokens of the model, one after the other, and which text it has written when it leaves all."""
    logs, before = plain_logs(model), _ids(model, prompt)
    spelled = {tuple(model.tokenizer.encode_inside(option, before)): option for option in options}
    law = dict.fromkeys(options, 0.0)

    def walk(path: tuple[int, ...], chance: float, last: str | None) -> None:
        last = spelled.get(path, last)
        inside = {spelling[len(path)] for spelling in spelled if spelling[: len(path)] == path and len(spelling) > len(path)}
        for token_id, chance_of_it in enumerate(logs(before + path).exp().tolist()):
            if token_id in inside:
                walk((*path, token_id), chance * chance_of_it, last)
            elif end == "free" and last is not None:
                law[last] += chance * chance_of_it
            elif end == "eos" and token_id == EOS and path in spelled:
                law[spelled[path]] += chance * chance_of_it

    walk((), 1.0, None)
    total = sum(law.values())
    return {option: chance / total for option, chance in law.items()}


def _tempered(law: Mapping[str, float], temperature: float) -> dict[str, float]:
    powers = {option: chance ** (1 / temperature) for option, chance in law.items()}
    return {option: power / sum(powers.values()) for option, power in powers.items()}


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    options=st.lists(st.one_of(st.text("ab ", min_size=1, max_size=4), st.sampled_from(_MORE)), min_size=1, max_size=5, unique=True),
    end=st.sampled_from(["eos", "free"]),
    prompt=st.sampled_from([PROMPT, "12 a", "red: ab"]),
)
def test_the_law_is_that_of_a_walk_over_all_tokens(options: list[str], end: Any, prompt: str) -> None:
    model = random_model()
    choose = generate.choice(model, options, end=end)
    found, law = choose.probabilities(prompt), _walked(model, options, end, prompt)
    assert law == pytest.approx(dict(found), rel=1e-6, abs=1e-12)
    assert law == pytest.approx(found.conditional, rel=1e-6, abs=1e-12)
    best = max(law.values())
    assert law[choose(prompt)] == pytest.approx(best) == pytest.approx(law[found.best])
    masked = generate.choice(model, options, end=end, exact=False).probabilities(prompt)
    assert law == pytest.approx(masked.conditional, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("end", "temperature"), [("free", 1.0), ("free", 0.5), ("eos", 4.0)])
def test_draws_have_the_law_at_a_temperature(end: Any, temperature: float) -> None:
    sampler = samplers.multinomial(600, temperature=temperature)
    choose = generate.choice(random_model(), NESTED, sampler=sampler, end=end)
    counts = Counter(choose(PROMPT, rng=5))
    law = _tempered(_walked(random_model(), NESTED, end), temperature)
    expected = {option: 600 * chance for option, chance in law.items()}
    rare = [option for option, mean in expected.items() if mean < 5]
    cells = [(counts[option], expected[option]) for option in law if option not in rare]
    cells.append((sum(counts[option] for option in rare), sum(expected[option] for option in rare)))
    chi_squared = sum((count - mean) ** 2 / mean for count, mean in cells if mean > 1)
    assert chi_squared < 23.51  # one in ten thousand, of four degrees of freedom
    assert all(counts[option] <= mean + 12 for option, mean in expected.items() if option in rare)


def _drawn(law: Mapping[str, float], number: float) -> str:
    """The option in whose part of a law, in the order of the options, a number falls."""
    sums = [*itertools.accumulate(law.values())]
    return [*law][next(i for i, total in enumerate(sums) if number < total)]


def test_a_draw_is_the_option_in_whose_part_of_the_law_its_number_falls() -> None:
    model = random_model()
    choose = continuous(generate.choice(model, NESTED, sampler=samplers.multinomial()))
    law = choose.generator.probabilities(PROMPT)
    for seed in range(12):
        state = choose(PROMPT, rng=seed)
        assert state.value == _drawn(law, RandomStream(seed).open().peek())
        assert state.rows[0][0].stream.drawn == 1  # whatever the number of tokens


# -- states --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["eos", "free"])
def test_a_state_has_the_log_probabilities_of_the_model_and_of_the_law(end: Any) -> None:
    model, options = random_model(), [*NESTED, "the red", "the reed"]
    law = _walked(model, options, end)
    choose = continuous(generate.choice(model, options, sampler=samplers.multinomial(30, temperature=9.0), end=end))
    state = choose(PROMPT, rng=2)
    assert len(set(state.values[0])) >= 4
    tempered = _tempered(law, 9.0)
    for row, value in zip(state.rows[0], state.values[0], strict=True):
        before, spelling = row.token_ids[: row.piece.start], row.token_ids[row.piece.start :]  # type: ignore[union-attr]
        assert model.tokenizer.decode(spelling) == value
        scores = model.score(PROMPT, value).tolist()
        assert scores == pytest.approx(list(row.logprobs[len(before) :]), abs=1e-6)
        logs = plain_logs(model)(row.token_ids)
        longer = [model.tokenizer.encode_inside(o, before)[len(spelling) :] for o in options if o != value and o.startswith(value)]
        if end == "eos":
            ended = float(logs[EOS])
        else:
            ended = math.log1p(-sum(math.exp(float(model.score(PROMPT + value, [*rest]).sum())) for rest in _shortest(longer)))
        # Where a longer text begins with it, the end was chosen, too.
        assert row.weight == pytest.approx(sum(scores) + (ended if longer else 0), abs=1e-6)
        # Down the tree the law of what comes next is multiplied; at the leaves it is that of the text.
        begun = sum(tempered[o] for o in options if tuple(model.tokenizer.encode_inside(o, before))[: len(spelling)] == spelling)
        assert math.exp(sum(row.sampling_logprobs[len(before) :])) == pytest.approx(begun, rel=1e-6)
        assert row.finish_reason == ("stop" if longer else "constraint")
        assert [x == 0 for x in row.sampling_logprobs[len(before) :]] == [kind in b"f" for kind in row.kinds[len(before) :]]


def _shortest(paths: list[list[int]]) -> list[list[int]]:
    """The paths that begin with no other of them."""
    return [path for path in paths if not any(path != other and path[: len(other)] == other for other in paths)]


def _continued(model: HuggingFaceModel, state: Any) -> str:
    return str(continuous(generate.text(model))(state, max_tokens=4))


@pytest.mark.parametrize("options", [["yes", "no"], NESTED, ["the red name", "the red nose", "the blue"], ["not at all"]])
def test_nothing_is_fed_twice_and_two_forwards_are_enough(options: list[str]) -> None:
    model = fresh_model()
    with model.meter() as counts:
        state = continuous(generate.choice(model, options))(PROMPT * 3)
    assert counts.forwards <= 2
    assert counts.recomputed_tokens == counts.reused_tokens == 0
    num_prompt, spelled = len(_ids(model, PROMPT * 3)), [model.tokenizer.encode_inside(o, _ids(model)) for o in options]
    assert counts.fed_tokens <= num_prompt + sum(len(ids) for ids in spelled)
    assert state.cached.item() == state.shape[2] - 1
    with model.meter() as after:
        text = _continued(model, state)
    assert after.fed_tokens == 4  # the last token of the text, and three that are written
    assert text == _continued(model, str(state))


def test_rows_samples_states_and_streams_are_the_same_choice() -> None:
    model = random_model()
    choose = generate.choice(model, NESTED, sampler=samplers.multinomial(temperature=2.0))
    prompts = [PROMPT, "12>", "a b c>" * 5]
    alone = [choose(prompt, rng=7) for prompt in prompts]
    assert choose(prompts, rng=7) == alone
    assert [asyncio.run(choose.acall(prompt, rng=7)) for prompt in prompts] == alone
    assert ["".join(choose.stream(prompt, rng=7)) for prompt in prompts] == alone
    begun = [continuous(generate.text(model))(prompt, max_tokens=2, rng=7) for prompt in prompts]
    assert choose(begun) == [choose(state) for state in begun]
    forks = begun[0].fork(30)
    drawn = continuous(choose)(forks)
    assert drawn.shape[1] == 30
    assert len({*drawn.values[0]}) > 2
    with model.meter() as counts:
        continuous(choose)(forks)
    assert counts.forwards <= 2  # equal rows are scored once


def test_events_tell_the_tokens_and_their_log_probabilities() -> None:
    model = random_model()
    choose = continuous(generate.choice(model, NESTED))
    expected = choose(PROMPT)
    with choose.stream(PROMPT) as stream:
        events = [*stream]
    row = expected.rows[0][0]
    start = row.piece.start  # type: ignore[union-attr]
    assert "".join(event.text for event in events) == expected.value
    assert [i for event in events for i in event.token_ids] == [*row.token_ids[start:]]
    assert [x for event in events for x in event.logprobs] == pytest.approx([*row.logprobs[start:]])
    assert (events[-1].finish_reason, stream.state.value) == (expected.finish_reasons[0][0], expected.value)


def test_a_stream_that_is_left_before_the_choice_goes_on_with_it() -> None:
    model = fresh_model()
    choose = continuous(generate.choice(model, NESTED, sampler=samplers.multinomial(temperature=3.0)))
    for seed in range(5):
        stream = choose.stream(PROMPT, rng=seed)
        task = stream.task()
        step = next(task)
        engine_of(model).advance(step.job)
        task.close()
        assert engine_of(model).num_running == 0
        cut = stream.state
        assert (str(cut), cut.finish_reasons) == (PROMPT, [["length"]])
        assert choose.resume(cut).value == choose(PROMPT, rng=seed).value


def test_a_cancelled_task_leaves_nothing_in_the_engine() -> None:
    model = fresh_model()
    choose = generate.choice(model, NESTED)

    async def cancelled() -> None:
        call = asyncio.ensure_future(choose.acall(PROMPT * 5))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancelled())
    assert choose(PROMPT) in NESTED
    assert engine_of(model).num_running == 0


@pytest.mark.parametrize("kind", ["recurrent", "gpt2", "gemma3", "small store"])
def test_other_models_choose_by_the_same_law(kind: str) -> None:
    options = [*NESTED, *(a + b for a in "ab" for b in "xyz")]
    if kind == "recurrent":
        model = models.from_transformers(recurrent_network(), FakeTokenizer())
    elif kind == "small store":
        model = models.from_transformers(random_network("llama"), FakeTokenizer(), prefix_cache_bytes=0, kv_budget_bytes=30_000)
    else:
        model = random_model(kind)
    law = _walked(model, options, "free")
    choose = continuous(generate.choice(model, options))
    assert law == pytest.approx(dict(choose.generator.probabilities(PROMPT)), rel=1e-6, abs=1e-12)
    state = choose(PROMPT)
    assert choose([PROMPT * 2, PROMPT]).values[1] == [state.value] == [max(law, key=law.__getitem__)]
    assert _continued(model, state) == _continued(model, str(state))


def test_many_options_are_one_choice_too() -> None:
    model = random_model()
    options = [a + b + c for a in "abcd" for b in "xyzw" for c in "12345678"]
    assert len(options) == MAX_OPTIONS
    long = PROMPT * 4  # 16 paths of two tokens
    assert generate.choice(model, options)(long) == generate.choice(model, options, exact=True)(long)
    options.append("yes")
    assert generate.choice(model, options)(long) == generate.choice(model, options, exact=False)(long)
    found = generate.choice(model, options, exact=True)
    assert found(PROMPT) == found.probabilities(PROMPT).best
    shares = found.probabilities(PROMPT).shares
    assert {option: share / sum(shares.values()) for option, share in shares.items()} == pytest.approx(dict(found.probabilities(PROMPT)))


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    options=st.lists(st.text("abxy 1", min_size=1, max_size=4), min_size=2 * MAX_UNPRICED // 3, max_size=2 * MAX_UNPRICED, unique=True),
    repeats=st.integers(1, 8),
)
def test_a_default_choice_of_many_texts_feeds_at_most_twice_the_row(options: list[str], repeats: int) -> None:
    model, prompt = fresh_model(), PROMPT * repeats
    num_row = len(_ids(model, prompt))
    fed: dict[bool | None, int] = {}
    for exact in (None, True, False):
        with model.meter() as meter:
            generate.choice(model, options, exact=exact)(prompt)
        fed[exact] = meter.fed_tokens
    is_whole = len(options) <= MAX_UNPRICED or fed[True] <= 2 * num_row
    assert fed[None] == fed[is_whole]
    assert is_whole or fed[None] <= num_row + max(map(len, options))
    sampler = samplers.multinomial(2)
    drawn = generate.choice(model, options, sampler=sampler)(prompt, rng=3)
    assert drawn == generate.choice(model, options, sampler=sampler, exact=is_whole)(prompt, rng=3)


@pytest.mark.filterwarnings("ignore::outlines_cont.errors.CalibrationWarning")  # the random model prefers other texts
def test_a_calibrated_choice_of_many_texts_is_one_of_whole_texts_after_a_short_prompt_too() -> None:
    model = random_model()
    options = [a + b + c for a in "abc" for b in "xyz" for c in "1234"]
    plain = generate.choice(model, options)
    masked = dict(generate.choice(model, options, exact=False).probabilities(PROMPT))
    assert dict(plain.probabilities(PROMPT)) == pytest.approx(masked) != pytest.approx(plain.probabilities(PROMPT).conditional)
    found = plain.probabilities(PROMPT, against=[">"])
    assert plain(PROMPT, against=[">"]) == found.best
    assert dict(found) == pytest.approx(dict(generate.choice(model, options, exact=True).probabilities(PROMPT, against=[">"])))


# -- beside other features -----------------------------------------------------------------------------------------


def test_a_choice_after_thoughts_is_that_after_the_same_text() -> None:
    model = random_model()
    sampler = samplers.multinomial(temperature=2.0)
    thinking = Thinking(begin="[T]", end="e", max_tokens=12)
    choose = continuous(generate.choice(model, NESTED, sampler=sampler))
    for seed in range(4):
        thought = choose(PROMPT, rng=seed, thinking=thinking)
        piece = thought.rows[0][0].piece
        assert piece is not None
        law = _tempered(choose.generator.probabilities(thought.tokens[..., : piece.start]), 2.0)
        stream = thought.rows[0][0].stream
        assert thought.value == _drawn(law, replace(stream, drawn=stream.drawn - 1).open().peek())


def test_templates_choose_in_the_same_way() -> None:
    model = random_model()
    template = Template(PROMPT + "{{ choice('k', " + repr(NESTED) + ") }}-{{ gen('x', max_tokens=2) }}")
    result = template.run(model)
    assert result.captures["k"] == generate.choice(model, NESTED)(PROMPT)
    masked = Template(PROMPT + "{{ choice('k', " + repr(NESTED) + ", exact=false, end='eos') }}").run(model)
    assert masked.captures["k"] == generate.choice(model, NESTED, exact=False, end="eos")(PROMPT)


def test_a_draft_changes_nothing() -> None:
    model = random_model()
    plain = continuous(generate.choice(model, NESTED))(PROMPT)
    assert continuous(generate.choice(model, NESTED, draft="lookup"))(PROMPT) == plain


@pytest.mark.parametrize(
    "options",
    [
        {"policies": [policies.ban(["green"])]},
        {"stop_at": "e"},
        {"min_tokens": 2},
        {"heal": True},
        {"max_tokens": 1},
        {"stop_token_ids": [5]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_acts_on_single_tokens_draws_them(options: dict[str, Any]) -> None:
    model = random_model()
    (name,) = options
    end: Any = "eos" if name == "stop_token_ids" else "free"
    expected = continuous(generate.choice(model, NESTED, exact=False, end=end))(PROMPT, **options)
    assert continuous(generate.choice(model, NESTED, end=end))(PROMPT, **options) == expected
    with pytest.raises(OptionError, match=f"(?s)(?=.*{name}).*exact=True") as caught:
        generate.choice(model, NESTED, exact=True, end=end)(PROMPT, **options)
    assert caught.value.option == name


def test_tokens_that_end_a_text_change_nothing_where_the_end_is_free() -> None:
    model = random_model()
    assert continuous(generate.choice(model, NESTED))(PROMPT, stop_token_ids=[5]) == continuous(generate.choice(model, NESTED))(PROMPT)


@pytest.mark.parametrize(
    "sampler",
    [samplers.multinomial(top_k=5), samplers.greedy(repetition_penalty=1.2), samplers.best_of(3), samplers.beam_search(2)],
    ids=str,
)
def test_other_samplers_draw_tokens(sampler: Any) -> None:
    model = random_model()
    expected = continuous(generate.choice(model, NESTED, exact=False, sampler=sampler))(PROMPT, rng=1)
    assert continuous(generate.choice(model, NESTED, sampler=sampler))(PROMPT, rng=1) == expected
    with pytest.raises(OptionError, match=r"exact=True.*samplers\.greedy"):
        generate.choice(model, NESTED, exact=True, sampler=sampler)


def test_the_temperature_of_a_sampler_that_has_no_other_option() -> None:
    assert temperature_of(samplers.greedy()) == 0
    assert temperature_of(samplers.multinomial(3)) == 1
    assert temperature_of(samplers.multinomial(temperature=0.5)) == 0.5
    assert temperature_of(samplers.multinomial(warpers=[samplers.Temperature(2.0)])) == 2
    for other in (samplers.multinomial(top_p=0.5), samplers.greedy(logit_bias={1: 1.0}), samplers.best_of(2), object()):
        assert temperature_of(other) is None


# -- what cannot be ------------------------------------------------------------------------------------------------


def test_errors_are_those_of_their_rows() -> None:
    model = scripted_model(lambda ids: {7: math.nan} if b"x>" in model.tokenizer.text_bytes(ids) else saying("no")(ids))
    state = continuous(generate.choice(model, ["n", "y"]))(["a>", "x>"])
    assert (state.values[0], type(state.errors[1][0])) == (["n"], InvalidLogits)
    none = dict.fromkeys(FakeTokenizer().encode("ab") + FakeTokenizer().encode("a") + FakeTokenizer().encode("b"), -math.inf)
    with pytest.raises(DeadEnd, match="probability zero for each"):
        generate.choice(scripted_model(lambda ids: none), ["a", "b"])("c>")


def test_what_is_no_choice_of_texts_is_refused() -> None:
    model = random_model()
    with pytest.raises(OptionError, match="True, False or None"):
        generate.choice(model, ["a"], exact=1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="'eos' or 'free'"):
        generate.choice(model, ["a"], end="none")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="without an empty one.*exact"):
        generate.choice(model, ["a", ""], exact=True)
    assert generate.choice(model, ["", "a"], exact=False, end="eos")(PROMPT) == generate.choice(model, ["", "a"], end="eos")(PROMPT)


def test_listed_values_of_a_type_are_a_choice_of_their_texts() -> None:
    model, kind = random_model(), Literal[1, 12, "yes", "yes, the red"]
    sampler = samplers.multinomial(20, temperature=3.0)
    chosen = generate.choice(model, ["1", "12", "yes", "yes, the red"], sampler=sampler)(PROMPT, rng=2)
    assert chosen == [*map(str, generate.format(model, kind, sampler=sampler)(PROMPT, rng=2))]
    texts = generate.choice(model, ["true", "false", "True", "False"])(PROMPT)
    assert generate.format(model, bool)(PROMPT) is (texts.lower() == "true")


def test_texts_that_are_given_twice_count_once() -> None:
    model = random_model()
    assert generate.choice(model, ["no", "yes", "no"])(PROMPT) == generate.choice(model, ["no", "yes"])(PROMPT)


def test_a_generator_that_was_pickled_chooses_in_the_same_way() -> None:
    model = models.tiny()
    choose = generate.choice(model, ["order", "order of lamps"], exact=True, end="eos")
    again = pickle.loads(pickle.dumps(choose))  # noqa: S301
    assert again.exact == choose.exact
    assert again("Kind: ") == choose("Kind: ")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_forward_that_fails_is_tried_again_with_fewer_rows(at: int) -> None:
    model = fresh_model()
    choose = generate.choice(model, NESTED)
    expected = choose([PROMPT, "a 12 a 12>"])
    with failing(model, at):
        assert choose([PROMPT, "a 12 a 12>"]) == expected
