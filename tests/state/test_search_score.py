"""The score that a search ranks by: over a whole chain, whatever text is added between its pieces."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
from outlines_cont import SequenceState, continuous, generate, models, samplers
from outlines_cont.models import HuggingFaceModel
from outlines_cont.state.row import WRITTEN
from outlines_cont.state.text import kept_tokens
from tests.examples import examples
from tests.fakes import EOS, VOCAB_SIZE, FakeTokenizer, Script, random_model, scripted_model
from tests.oracle import ends_of, next_logits, rescored

_FIRST = ["yes", "no", "the", "an"]
_SECOND = ["red", "re", "d", "green"]
_BETWEEN = st.sampled_from(["\nDue: ", " of ", ", ", ""])
_PROMPTS = st.text("abn ", min_size=1, max_size=4)


def _spelled(model: HuggingFaceModel, before: tuple[int, ...], options: list[str]) -> dict[str, tuple[float, tuple[int, ...]]]:
    """Every text among `options`, with its most probable spelling after some tokens and the log-probability of that."""
    token_fsm = fsm.TokenFSM(fsm.choice(options), model.memo["vocabulary"])
    best: dict[str, tuple[float, tuple[int, ...]]] = {}
    todo: list[tuple[int, tuple[int, ...], float]] = [(token_fsm.initial_state, (), 0.0)]
    while todo:
        state, ids, score = todo.pop()
        allowed = set(token_fsm.allowed_token_ids(state).tolist())
        logprobs = next_logits(model, [*before, *ids])[-1].log_softmax(-1).tolist()
        ends = allowed & model.eos_token_ids
        if ends:
            # An end without an alternative is not sampled.
            whole = score if allowed == ends else score + max(logprobs[i] for i in ends)
            text = model.tokenizer.text_bytes(ids).decode()
            best[text] = max(best.get(text, (-math.inf, ())), (whole, ids))
        todo += [(token_fsm.next_state(state, i), (*ids, i), score + logprobs[i]) for i in allowed - ends]
    return best


@settings(max_examples=examples(5))
@given(_PROMPTS, _BETWEEN)
def test_as_many_beams_as_hypotheses_are_brute_force_over_the_whole_chain(prompt: str, between: str) -> None:
    model = random_model()
    first, second = (
        continuous(generate.choice(model, options, sampler=samplers.beam_search(200), end="eos", force=False))
        for options in (_FIRST, _SECOND)
    )
    wanted: dict[tuple[str, str], float] = {}
    begun = tuple(model.tokenizer.encode(prompt, add_special_tokens=True))
    for text, (score, ids) in _spelled(model, begun, _FIRST).items():
        before = (*begun, *ids, *model.tokenizer.encode_inside(between, (*begun, *ids)))
        for other, (more, _) in _spelled(model, before, _SECOND).items():
            wanted[text, other] = score + more
    found = second(first(prompt) + between if between else first(prompt))
    ranked = sorted(wanted, key=lambda pair: -wanted[pair])
    assert [prompt + a + between + b for a, b in ranked] == list(found)
    assert [wanted[pair] for pair in ranked] == pytest.approx(found.scores[0].tolist(), abs=1e-5)
    assert list(found.best(2)) == list(found)[:2]
    assert set(product(_FIRST, _SECOND)) == set(ranked)


def test_the_search_of_the_chaining_page_finds_the_best_chain() -> None:
    model = models.tiny()
    prompt = "Message: Hello, this is Marta Keller from Porto. Please send 12 desk lamps by 2031-05-14.\nKind: "
    search = samplers.beam_search(4)
    kinds = continuous(generate.choice(model, ["order", "invoice", "complaint"], sampler=search))(prompt)
    dates = continuous(generate.regex(model, "[0-9]{4}-[0-9]{2}-[0-9]{2}", sampler=search))
    found = dates(kinds + "\nDue: ")
    assert next(iter(found)) == f"{prompt}order\nDue: 2031-05-14"
    assert found.scores[0].tolist() == sorted(found.scores[0].tolist(), reverse=True)
    assert str(found.best()) == next(iter(found))
    assert float(kinds.weights[0, 0]) + float(found.weights[0, 0]) == pytest.approx(float(found.scores[0, 0]), abs=1e-4)


@settings(max_examples=examples(10))
@given(_PROMPTS, _BETWEEN, st.sampled_from([0.0, 1.0]), st.integers(0, 5))
def test_what_is_done_to_a_state_leaves_its_scores_right(prompt: str, between: str, penalty: float, seed: int) -> None:
    model = random_model()
    search = samplers.beam_search(3, length_penalty=penalty)
    one = continuous(generate.regex(model, "[xyz]{2}", sampler=search, force=False, end="eos"))(prompt)
    score = one.scores[0].tolist()
    longer = one + "\nDue: "
    assert score == longer.scores[0].tolist() == one.append(between).scores[0].tolist()
    assert longer.weights[0].tolist() == [0.0] * 3
    for same in (longer.fork(2)[:, ::2, :], SequenceState.stack([longer, longer])[1, :, :], longer.detach_cache()):
        assert score == same.scores[0].tolist()
    assert score == [float(longer.take([(0, s)]).scores[0, 0]) for s in range(3)]
    assert score == longer[..., : len(next(iter(one)))].scores[0].tolist()
    assert score == pytest.approx(one.append("d", boundary="heal").scores[0].tolist()) or penalty
    assert list(longer.sort()) == list(longer)
    # Whatever writes on, it counts, and nothing else.
    after = continuous(generate.text(model, sampler=samplers.multinomial(3)))(longer, max_tokens=3, rng=seed)
    for row in after.rows[0]:
        assert row.search is not None
        kept = [p for p, kind in zip(rescored(model, row.token_ids), row.kinds, strict=True) if kind in WRITTEN]
        total = sum(kept) + sum(logprob for _, logprob in row.search.ends)
        assert total / len(kept) ** penalty == pytest.approx(row.score, abs=1e-8)
    ranked = after.best(3).scores[0].tolist()
    assert sorted(after.scores[0].tolist(), reverse=True) == ranked


def test_scores_are_saved_and_joined(tmp_path: Path) -> None:
    model = random_model()
    search = samplers.beam_search(3, length_penalty=0.5)
    one = continuous(generate.regex(model, "[xyz]{0,2}", sampler=search, force=False))("the") + " of "
    one.save(tmp_path / "s")
    loaded = SequenceState.load(tmp_path / "s", model)
    assert one.scores.tolist() == loaded.scores.tolist()
    assert [row.search for row in one.rows[0]] == [row.search for row in loaded.rows[0]]
    plain = SequenceState.load(tmp_path / "s", model)
    both = one + plain
    for left, right, row in zip(one.rows[0], plain.rows[0], both.rows[0], strict=True):
        assert left.search is not None
        assert right.search is not None
        assert row.search is not None
        total = left.search.total(left.logprobs) + right.search.total(right.logprobs)
        assert total == pytest.approx(row.search.total(row.logprobs))
        assert row.search.num_written(row.kinds) == sum(kind in WRITTEN for kind in row.kinds)
        # A part of the sum has the score of that part.
        assert left.search.mapped(int) == kept_tokens(row, len(left.token_ids)).search
        assert kept_tokens(row, len(left.token_ids)).score == pytest.approx(left.score)


def test_rows_that_no_search_wrote_are_ranked_by_their_weights() -> None:
    model = random_model()
    draw = continuous(generate.text(model, sampler=samplers.multinomial(4)))
    state = draw(draw("the", max_tokens=3, rng=1) + " of", max_tokens=2)
    assert state.scores.tolist() == state.weights.tolist()
    assert state.best().weights.item() == state.weights.max().item()
    middle = (continuous(generate.regex(model, "[ab]{4}", sampler=samplers.beam_search(2)))("the") + " of")[..., 2:]
    assert middle.scores.tolist() == middle.weights.tolist()


_PARTS = [b"a", b"b", b"ab", b""]


def _drawn_to_stop(script: Script, prompt: str, stop_at: str, most: int, penalty: float) -> dict[str, float]:
    """Every text that is written before a stop text, an end or the limit, with the best score of what is drawn for it."""
    begun = FakeTokenizer().encode(prompt, add_special_tokens=True)
    ids = _ids()
    best: dict[str, float] = {}
    for parts in product(_PARTS, repeat=most):
        drawn, score = "", 0.0
        for count, part in enumerate(parts, 1):
            logits = torch.zeros(VOCAB_SIZE)
            for token_id, logit in script([*begun, *(ids[one] for one in parts[: count - 1])]).items():
                logits[token_id] = logit
            score += float(logits.log_softmax(-1)[ids[part]])
            drawn += part.decode()
            if not part or stop_at in drawn:
                break
        num_tokens = count - (not part)
        best[drawn.split(stop_at)[0]] = max(best.get(drawn.split(stop_at)[0], -math.inf), score / max(num_tokens, 1) ** penalty)
    return best


def _ids() -> dict[bytes, int]:
    return {data: i for i, data in enumerate(FakeTokenizer().token_bytes) if data} | {b"": EOS}


def _random_law(seed: int) -> Script:
    """What hardly says anything but a few tokens, each with a probability that depends on all before it."""
    ids = _ids()
    return lambda before: {ids[part]: 40 + Random(f"{seed}{before}{part!r}").uniform(0, 9) for part in _PARTS}


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["b", "ab", "ba", "aa"]), st.sampled_from([0.0, 1.0]))
def test_what_is_drawn_to_reach_a_stop_text_counts_in_a_search(seed: int, stop_at: str, penalty: float) -> None:
    """As many beams as hypotheses are brute force over all that can be drawn, whatever of it the stop then cuts."""
    law = _random_law(seed)
    wanted = _drawn_to_stop(law, "n", stop_at, 3, penalty)
    search = continuous(generate.text(scripted_model(law), sampler=samplers.beam_search(50, length_penalty=penalty)))
    found = search("n", max_tokens=3, stop_at=stop_at)
    assert not any(text.count(stop_at) for text in found.values[0])
    ranked = sorted(wanted, key=lambda text: -wanted[text])
    assert ranked == found.values[0][: len(ranked)]
    assert [wanted[text] for text in ranked] == pytest.approx(found.scores[0].tolist()[: len(ranked)], abs=1e-4)


@settings(max_examples=examples(12), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["b", "ab", "ba", ["bb", "aa"]]),
    st.booleans(),
    st.sampled_from([samplers.multinomial, samplers.best_of]),
)
def test_samples_are_ranked_by_all_that_was_drawn(seed: int, stop_at: str | list[str], keep: bool, sampler: Any) -> None:
    model = scripted_model(_random_law(seed))
    options = {"max_tokens": 5, "rng": seed}
    free = continuous(generate.text(model, sampler=samplers.multinomial(6)))("n", **options)
    stopped = continuous(generate.text(model, sampler=sampler(6)))("n", stop_at=stop_at, keep_stop=keep, **options)
    wanted = []
    for row in free.rows[0]:
        texts = [model.tokenizer.decode(row.token_ids[2:count]) for count in range(2, len(row.token_ids) + 1)]
        is_stopped = [any(stop in text for stop in ([stop_at] if isinstance(stop_at, str) else stop_at)) for text in texts]
        wanted.append(sum(row.logprobs[: 2 + is_stopped.index(True)]) if True in is_stopped else row.weight)
    if sampler is samplers.multinomial:
        assert wanted == pytest.approx(stopped.scores[0].tolist(), abs=1e-4)
    assert max(wanted) == pytest.approx(stopped.best().scores.item(), abs=1e-4)
    for row in stopped.rows[0]:
        assert row.weight == pytest.approx(sum(row.logprobs) + ends_of(row))
        assert row.score <= row.weight
    longer = (stopped + " of ") if sampler is samplers.best_of else stopped.append(" of ")
    assert stopped.scores.tolist() == longer.scores.tolist()
    assert stopped.scores.tolist() == longer[..., : len(next(iter(stopped)))].scores.tolist() or stopped.num_samples > 1
