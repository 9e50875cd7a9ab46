"""Importance weights, `log_z` and `samplers.conditional`: against the sum over all texts of a language, by a walk over all tokens."""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fsm
from fsm import TokenFSM
from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.errors import LengthWarning, OptionError, SampleSizeWarning
from outlines_cont.policies.constraint import vocabulary_of_model
from outlines_cont.samplers import gives_one_text
from outlines_cont.state.log_z import LogZ, effective_size
from tests.fakes import EOS, random_model
from tests.oracle import plain_logs

PROMPT = "the name is>"
PATTERN = "(ab|a)(c|12)?"
Path_ = tuple[int, ...]


@cache
def _walked(temperature: float = 1.0) -> dict[Path_, tuple[float, float]]:
    """Each sequence of tokens of the language: its probability by the model, and that with which a mask draws it, ends included."""
    model = random_model()
    logs, tokens = plain_logs(model), TokenFSM(fsm.regex(PATTERN), vocabulary_of_model(model))
    before = tuple(model.tokenizer.encode(PROMPT, add_special_tokens=True))
    found: dict[Path_, tuple[float, float]] = {}

    def walk(path: Path_, state: int, chance: float, drawn: float) -> None:
        allowed = [token_id for token_id in tokens.allowed_token_ids(state).tolist() if token_id != EOS]
        if not allowed:  # it alone can end here, and adds nothing
            found[path] = chance, drawn
            return
        probabilities = logs(before + path).exp()
        options = [*allowed, *([EOS] if tokens.is_accepting(state) else [])]
        tempered = {token_id: float(probabilities[token_id]) ** (1 / temperature) for token_id in options}
        total = sum(tempered.values())
        for token_id, share in tempered.items():
            both = chance * float(probabilities[token_id]), drawn * share / total
            if token_id == EOS:
                found[path] = both
            else:
                walk((*path, token_id), tokens.next_state(state, token_id), *both)

    walk((), tokens.initial_state, 1.0, 1.0)
    return found


def _by_text(chances: Iterable[tuple[Path_, float]]) -> dict[str, float]:
    texts: dict[str, float] = defaultdict(float)
    for path, chance in chances:
        texts[random_model().tokenizer.decode(path)] += chance
    total = sum(texts.values())
    return {text: chance / total for text, chance in texts.items()}


def _writer(sampler: Any, **options: Any) -> Any:
    return continuous(generate.regex(random_model(), PATTERN, sampler=sampler, end="eos", force=False, **options))


def _path(row: Any) -> Path_:
    return tuple(row.token_ids[row.piece.start :])


def _distance(law: dict[str, float], texts: list[str]) -> float:
    found = Counter(texts)
    assert set(found) <= set(law)
    return sum(abs(found[text] / len(texts) - chance) for text, chance in law.items()) / 2


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_importance_of_each_text_is_its_probability_over_that_of_its_draw(temperature: float) -> None:
    law = _walked(temperature)
    state = _writer(samplers.multinomial(300, temperature=temperature))(PROMPT, rng=3)
    rows, seen = state.rows[0], dict[Path_, float]()
    for row, importance in zip(rows, state.importance[0].tolist(), strict=True):
        chance, drawn = law[_path(row)]
        assert math.log(chance / drawn) == pytest.approx(importance, abs=1e-6)
        seen[_path(row)] = drawn * math.exp(importance)
    assert len(seen) > len(law) // 2
    z = sum(chance for chance, _ in law.values())
    value, error, effective = (float(one[0]) for one in state.log_z)
    assert 0 < error < 0.5
    assert 1 < effective < 300
    assert abs(value - math.log(z)) < 4 * error
    assert sum(seen.values()) <= z + 1e-9


def test_conditional_draws_by_the_model_where_a_mask_does_not() -> None:
    law = _by_text((path, chance) for path, (chance, _) in _walked().items())
    masked = _by_text((path, drawn) for path, (_, drawn) in _walked().items())
    assert sum(abs(law[text] - masked[text]) for text in law) / 2 > 0.1
    sampler = samplers.conditional(300, particles=900)
    drawn = _writer(sampler)(PROMPT, rng=5)
    assert drawn.shape[:2] == (1, 300)
    assert _distance(law, drawn.values[0]) < 0.08
    by_hand = _writer(samplers.multinomial(900))(PROMPT, rng=5)
    assert by_hand.resample(by_hand.importance, 300) == drawn
    assert _distance(masked, by_hand.values[0]) < 0.07


@pytest.mark.parametrize("end", ["free", "eos"])
def test_the_weights_of_a_choice_of_whole_texts_are_all_the_share_of_the_options(end: Any) -> None:
    choose = generate.choice(random_model(), ["yes", "yes, the red", "no", "green"], end=end, sampler=samplers.multinomial(40))
    state = continuous(choose)(PROMPT, rng=1)
    assert len({*state.values[0]}) > 1
    share = math.log(sum(choose.probabilities(PROMPT).shares.values()))
    if end == "free":  # `shares` count the longer options for those that begin them
        assert float(state.log_z.value[0]) <= share + 1e-9
    assert [float(state.log_z.value[0])] * 40 == pytest.approx(state.importance[0].tolist(), abs=1e-9)
    assert float(state.log_z.error[0]) == pytest.approx(0, abs=1e-6)
    kept = generate.choice(random_model(), ["yes", "no"], exact=True, sampler=samplers.conditional(3, particles=4))(PROMPT, rng=1)
    assert len(kept) == 3


def test_weights_follow_a_state() -> None:
    model = random_model()
    state = _writer(samplers.multinomial(6))(PROMPT, rng=2)
    importance = state.importance[0]
    assert torch.equal(importance[2:4], state[0, 2:4, :].importance[0])
    assert state.append(" the").importance[0].tolist() == importance.tolist()
    assert (state + " the").importance[0].tolist() == [0.0] * 6
    longer = _writer(samplers.multinomial())(state.append(">"), rng=4)
    alone = _writer(samplers.multinomial())(state + ">", rng=4)
    assert longer.importance[0].tolist() == pytest.approx((importance + alone.importance[0]).tolist())
    free = continuous(generate.text(model, sampler=samplers.multinomial(3)))(PROMPT, max_tokens=4, rng=1)
    differences = (free.logprobs - free.sampling_logprobs).nansum(-1)[0]  # ids without a name are masked in free text, too
    assert free.importance[0].tolist() == pytest.approx(differences.tolist(), abs=1e-5)
    assert bool((differences < 0).all())


def test_a_file_has_the_weights(tmp_path: Path) -> None:
    state = _writer(samplers.multinomial(6))(PROMPT, rng=2)
    state.save(tmp_path / "state")
    loaded = SequenceState.load(tmp_path / "state", random_model())
    assert torch.equal(state.importance, loaded.importance)
    assert torch.equal(state.log_z.value, loaded.log_z.value)


def test_drafts_and_streams_have_the_same_weights() -> None:
    plain = _writer(samplers.multinomial())(PROMPT, rng=7)
    drafted = _writer(samplers.multinomial(), draft="lookup")(PROMPT, rng=7)
    stream = _writer(samplers.multinomial()).stream(PROMPT, rng=7)
    assert "".join(event.text for event in stream) == plain.value
    for other in (drafted, stream.state):
        assert other == plain
        assert plain.importance.tolist()[0] == pytest.approx(other.importance.tolist()[0], abs=1e-9)


def test_what_a_row_had_before_is_no_part_of_the_weights_of_a_call() -> None:
    start = _writer(samplers.multinomial(8))(PROMPT, rng=2).append(">")
    sampler = samplers.conditional(2, particles=40)
    once = _writer(sampler)(start, rng=1)
    assert once.shape[:2] == (1, 16)
    flat = SequenceState(start.model, tuple(tuple(row.append((), reset=True) for row in group) for group in start.rows), start.seed)
    assert once == _writer(sampler)(flat, rng=1)


def test_texts_that_were_all_cut_are_resumed_one_by_one() -> None:
    write = continuous(generate.regex(random_model(), "[ab]{9}", force=False, sampler=samplers.conditional(3, particles=5)))
    cut = write([PROMPT, "12"], rng=1, max_tokens=2)
    assert cut.finish_reasons == [["length"] * 3] * 2
    whole = write.resume(cut)
    assert whole.shape[:2] == (2, 3)
    assert whole.finished.all()
    for one, other in zip(whole.rows, cut.rows, strict=True):
        assert [row.token_ids[: len(before.token_ids)] for row, before in zip(one, other, strict=True)] == [row.token_ids for row in other]


def test_a_text_that_was_cut_counts_as_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LengthWarning)
        state = _writer(samplers.multinomial(60))(PROMPT, rng=2, max_tokens=1)
    whole = [row.finish_reason != "length" for row in state.rows[0]]
    assert True in whole
    assert False in whole
    weights = [log if is_whole else -math.inf for log, is_whole in zip(state.importance[0].tolist(), whole, strict=True)]
    assert torch.equal(state.log_z.value, LogZ.of([weights]).value)
    kept = _writer(samplers.conditional(5, particles=60))(PROMPT, rng=2, max_tokens=1)
    assert kept.finished.all()
    none = continuous(generate.regex(random_model(), "a{9}", force=False, end="eos", sampler=samplers.conditional(2, particles=3)))
    assert none(PROMPT, rng=1, max_tokens=2).finish_reasons == [["length", "length"]]


@given(st.lists(st.one_of(st.just(-math.inf), st.floats(-30, 30)), min_size=1, max_size=9))
def test_log_z_is_the_plain_formula(logs: list[float]) -> None:
    weights = [math.exp(log) for log in logs]
    found = LogZ.of([logs])
    if not any(weights):
        assert (float(found.value[0]), float(found.effective[0])) == (-math.inf, 0.0)
        assert found.error.isnan().all()
        return
    mean = sum(weights) / len(weights)
    assert math.log(mean) == pytest.approx(float(found.value[0]), abs=1e-9)
    assert 1 - 1e-9 <= effective_size(logs) <= len(logs) + 1e-9
    if len(logs) > 1:
        variance = sum((weight - mean) ** 2 for weight in weights) / (len(logs) - 1) / len(logs)
        assert math.sqrt(variance) / mean == pytest.approx(float(found.error[0]), rel=1e-6, abs=1e-6)


def test_few_effective_samples_are_told() -> None:
    with pytest.warns(SampleSizeWarning, match=r"expected 10 effective samples or more .*, got [1-9]\.\d of 12 particles"):
        _writer(samplers.conditional(particles=12))(PROMPT, rng=5)


def test_what_is_refused_says_why() -> None:
    assert repr(samplers.conditional(2, temperature=2.0)) == "conditional(2, particles=64, temperature=2.0)"
    assert samplers.conditional(20).samples == 160
    with pytest.raises(OptionError, match="particles"):
        samplers.conditional(5, particles=4)
    with pytest.raises(OptionError, match="stream"):
        _writer(samplers.conditional()).stream(PROMPT)
    assert gives_one_text(samplers.conditional())
    assert not gives_one_text(samplers.conditional(2))
    with pytest.raises(OptionError, match="without rows"):
        _ = SequenceState(random_model(), (), 0).log_z
