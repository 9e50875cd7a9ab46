"""The adapters for transformers: what they take, what they refuse, and where they say that a text begins."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from transformers import BatchEncoding, PreTrainedTokenizerFast

import fsm
from outlines_cont import SequenceState, adapters, continuous, generate
from outlines_cont.adapters.opening import compiler_of
from outlines_cont.adapters.processor import OVER, RowMasks
from outlines_cont.errors import AmbiguousPrompt, DeadEnd, MissingEOS, NotPicklable, OptionError, UnknownOption, VocabularyMismatch
from outlines_cont.models.tokenizer.tokenizer import Tokenizer
from tests.fakes import BOS, EOS, VOCAB_SIZE, FakeTokenizer, random_model
from tests.vocabularies import byte_level_bpe

TOKENS = FakeTokenizer()


class Person(BaseModel):
    name: str
    age: int


def ids(text: str, *, bos: bool = True) -> list[int]:
    """One token per byte."""
    return [BOS] * bos + [3 + byte for byte in text.encode()]


def allowed(processor: Any, *texts: str) -> list[set[bytes]]:
    """The bytes that may follow each text; an end is b''."""
    scores = processor(torch.tensor([ids(text) for text in texts]), torch.zeros(len(texts), VOCAB_SIZE))
    return [{TOKENS.token_bytes[i] or b"" for i in (~row.isneginf()).nonzero()[:, 0].tolist()} for row in scores]


def test_a_constraint_is_an_expression_a_schema_a_type_or_a_pattern() -> None:
    of_type = adapters.logits_processor(Person, TOKENS)
    assert [{b"{", b'{"'}] == allowed(of_type.of(2), "p")
    assert allowed(of_type.of(1), '{"n') == allowed(adapters.logits_processor(Person.model_json_schema(), TOKENS).of(1), '{"n')
    assert [{b"1", b"2", b"12"}] == allowed(adapters.logits_processor("[12]{1,2}", TOKENS).of(2), "p")
    assert [{b"1", b"2", b"12"}] == allowed(adapters.logits_processor(fsm.regex("[12]{1,2}"), TOKENS).of(2), "p")


@pytest.mark.parametrize(
    ("constraint", "message"),
    [('{"type": "object"}', "looks like a schema as JSON text"), (3, "schema"), (Person(name="a", age=1), "Pass the class, `Person`")],
)
def test_other_constraints_are_refused(constraint: Any, message: str) -> None:
    with pytest.raises((OptionError, fsm.FSMError, TypeError), match=message):
        adapters.logits_processor(constraint, TOKENS)


def test_checks_are_refused_or_ignored_by_name() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with pytest.raises(OptionError, match=r"uniqueItems.*generate\.json.*checks='ignore'"):
        adapters.logits_processor(schema, TOKENS)
    assert [{b"["}] == allowed(adapters.logits_processor(schema, TOKENS, checks="ignore").of(2), "p")
    with pytest.raises(OptionError, match="'refuse' or 'ignore' as `checks`, got 'drop'"):
        adapters.logits_processor(schema, TOKENS, checks="drop")


def test_a_key_may_come_twice_where_that_changes_no_verdict() -> None:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
    processor = adapters.logits_processor(schema, TOKENS)
    text = '{"a": 1, "a": 2}'
    assert [{b""}] == allowed(processor.of(1), text)
    Draft202012Validator(schema).validate(json.loads(text))
    with pytest.raises(OptionError, match="no key is repeated"):
        adapters.logits_processor(schema | {"minProperties": 2}, TOKENS)


def test_rows_that_are_over_may_only_end() -> None:
    processor = adapters.logits_processor("ab*", TOKENS).of(1)
    rows = torch.tensor([[BOS, 3 + ord("a"), EOS, 7], [BOS, 3 + ord("x"), 7, 7], [BOS, 3 + ord("a"), EOS, EOS]])
    scores = torch.zeros(3, VOCAB_SIZE)
    scores[1, EOS] = -torch.inf  # as `min_new_tokens` does
    masked = processor(rows, scores)  # type: ignore[arg-type]
    assert [(~row.isneginf()).nonzero()[:, 0].tolist() for row in masked] == [[EOS]] * 3


def test_all_ends_of_a_model_are_allowed() -> None:
    processor = adapters.logits_processor("a", TOKENS, eos_token_ids=[EOS, 2]).of(1)
    masked = processor(torch.tensor([ids("a")]), torch.zeros(1, VOCAB_SIZE))  # type: ignore[arg-type]
    assert (~masked[0].isneginf()).nonzero()[:, 0].tolist() == [1, 2]
    with pytest.raises(MissingEOS, match="eos_token_ids=model"):
        adapters.logits_processor("a", FakeTokenizer(eos=False))
    with pytest.raises(OptionError, match="expected ids from 0 to"):
        adapters.logits_processor("a", TOKENS, eos_token_ids=9_999)
    with pytest.raises(OptionError, match="`eos_token_ids`"):
        adapters.logits_processor("a", TOKENS, eos_token_ids=["</s>"])  # type: ignore[list-item]


def test_logits_may_be_wider_than_the_vocabulary_and_not_narrower() -> None:
    processor = adapters.logits_processor("a", TOKENS).of(1)
    wide = processor(torch.tensor([ids("p")[:1]]), torch.zeros(1, VOCAB_SIZE + 40))  # type: ignore[arg-type]
    assert [3 + ord("a")] == (~wide[0].isneginf()).nonzero()[:, 0].tolist()
    with pytest.raises(VocabularyMismatch, match=r"at least \d+ tokens.*got 100.*vocab_size=100"):
        processor(torch.tensor([[BOS]]), torch.zeros(1, 100))  # type: ignore[arg-type]
    narrow = adapters.logits_processor("a", TOKENS, vocab_size=200).of(1)
    assert narrow(torch.tensor([[BOS]]), torch.zeros(1, 200)).shape == (1, 200)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a number of tokens as `vocab_size`, got 0"):
        adapters.logits_processor("a", TOKENS, vocab_size=0)


def test_what_other_processors_leave_nothing_of_is_an_error_that_names_them() -> None:
    processor = adapters.logits_processor("a", TOKENS).of(2)
    scores = torch.zeros(2, VOCAB_SIZE)
    scores[1, 3 + ord("a")] = -torch.inf
    with pytest.raises(DeadEnd, match=r"in row 1, 0 tokens after its prompt.*min_new_tokens"):
        processor(torch.tensor([ids("p"), ids("q")]), scores)  # type: ignore[arg-type]


def test_scores_are_not_changed_and_their_type_stays() -> None:
    processor = adapters.logits_processor("a", TOKENS).of(1)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        scores = torch.randn(1, VOCAB_SIZE).to(dtype)
        before = scores.clone()
        assert dtype == processor(torch.tensor([[BOS]]), scores).dtype  # type: ignore[arg-type]
        assert torch.equal(before, scores)


def test_prompts_are_given_in_several_forms() -> None:
    processor = adapters.logits_processor("ab", TOKENS)
    rows = torch.tensor([ids("pq"), ids("rs")])
    for inputs in (BatchEncoding({"input_ids": rows}), {"input_ids": rows}, rows, rows.numpy(), rows.tolist(), 3):
        assert [{b"b"}] == allowed(processor.of(inputs), "pqa")
    assert [{b"b"}] == allowed(processor.of(ids("pq")), "pqa")
    for odd in ("pq", -1, True, None, torch.zeros(1, 3), [[1, 2], [1]], {"text": "pq"}):
        with pytest.raises((OptionError, KeyError), match="input_ids"):
            processor.of(odd)


def test_a_processor_of_other_prompts_is_refused() -> None:
    bound = adapters.logits_processor("ab", TOKENS).of({"input_ids": torch.tensor([ids("pq")])})
    with pytest.raises(AmbiguousPrompt, match="another one in row 0"):
        allowed(bound, "xya")
    with pytest.raises(AmbiguousPrompt, match="a prompt of 3 tokens, padding included, got rows of 2"):
        allowed(bound, "p")
    assert [{b"a", b"ab"}] == allowed(bound, "pq")
    with pytest.raises(AmbiguousPrompt, match="another one in row 1"):
        allowed(bound, "pqa", "xya")


def test_who_does_not_say_where_the_texts_begin_is_told_to() -> None:
    rows = torch.tensor([ids("p")])
    processor, function = adapters.logits_processor("ab", TOKENS), adapters.prefix_allowed_tokens_fn("ab", TOKENS)
    for _ in range(2):
        with pytest.raises(AmbiguousPrompt, match=r"logits_processor=\[processor\.of\(inputs\)\]"):
            processor(rows, torch.zeros(1, VOCAB_SIZE))  # type: ignore[arg-type]
        with pytest.raises(AmbiguousPrompt, match=r"prefix_allowed_tokens_fn=allowed\.of\(inputs\)"):
            function(0, rows[0])
    assert [{b"a", b"ab"}] == allowed(processor.of(rows), "p")


def test_a_copy_knows_the_prompts() -> None:
    processor = adapters.logits_processor("[ab]{2}", TOKENS)
    assert [{b"a", b"b"}] == allowed(copy.deepcopy(processor.of(2)), "pa")
    with pytest.raises(AmbiguousPrompt):
        allowed(copy.deepcopy(processor), "pa")


def test_they_say_what_they_are_and_stay_in_their_process() -> None:
    processor, function = (make("[ab]{2}", TOKENS) for make in (adapters.logits_processor, adapters.prefix_allowed_tokens_fn))
    assert repr(processor.of(1)).startswith("<ConstraintProcessor: regex('[ab]{2}') over 351 tokens, of given")
    for one in (processor, function, copy.deepcopy(function)):
        assert "regex('[ab]{2}') over 351 tokens" in repr(one)
        with pytest.raises(NotPicklable, match=r"adapters\.logits_processor"):
            pickle.dumps(one)


def test_equal_constraints_are_compiled_once() -> None:
    made = [adapters.logits_processor("[ab]{5}", TOKENS) for _ in range(2)]
    assert made[0]._masks.token_fsm is made[1]._masks.token_fsm
    hugging_face = byte_level_bpe()
    compilers = [compiler_of(Tokenizer(hugging_face), 0, None) for _ in range(2)]
    one, other = (compiler(fsm.regex("a")).token_fsm.vocabulary for compiler in compilers)
    assert one.tokens == other.tokens


def test_tokens_that_were_added_since_are_seen() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(), eos_token="<|endoftext|>")
    before = adapters.logits_processor("ab", tokenizer)
    size = len(tokenizer)
    tokenizer.add_tokens(["zzyzx"])
    after = adapters.logits_processor("zzyzx", tokenizer)
    assert [size, size + 1] == [len(one._masks.token_fsm.vocabulary.tokens) for one in (before, after)]
    assert size in after._masks.token_fsm.allowed_token_ids(after._masks.token_fsm.initial_state)


def test_a_model_knows_its_tokens_and_ends() -> None:
    model = random_model()
    processor = adapters.logits_processor("ab", model)
    assert tuple(sorted(model.eos_token_ids)) == processor._masks.token_fsm.vocabulary.eos_token_ids
    with pytest.raises(UnknownOption, match="Did you mean 'vocab_size'"):
        adapters.logits_processor("ab", model, vocabsize=3)  # type: ignore[call-arg]


def test_what_is_forgotten_is_read_again() -> None:
    token_fsm = compiler_of(TOKENS, None, None)(fsm.regex("[ab]*")).token_fsm
    states = RowMasks(token_fsm, 0, max_bytes=400)
    plain = RowMasks(token_fsm, 0)
    texts = [ids("ab" * n, bos=False) for n in (20, 1, 30, 20, 5)] + [[*ids("a", bos=False), EOS], [7]]
    rows = [np.array(text, np.int64) for text in texts]
    assert [plain.state_after(row) for row in rows] == [states.state_after(row) for row in rows]
    assert 1 <= len(states._known) <= 2
    assert states._known.nbytes == sum(len(data) + 150 for data, _ in states._known.items())
    assert [states.state_after(row) for row in rows[-2:]] == [OVER, OVER]


def test_what_generate_has_fed_for_several_rows_goes_on_as_a_state() -> None:
    model = random_model()
    rows = torch.tensor([[EOS, *ids("p")], ids("pq")])
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    out: Any = model.hugging_face.generate(
        rows,
        attention_mask=mask,
        logits_processor=[adapters.logits_processor("[ab]|[xy]{6}", model).of(rows)],
        max_new_tokens=5,
        do_sample=False,
        pad_token_id=EOS,
        return_dict_in_generate=True,
    )
    new = out.sequences[:, 3:]
    seen = torch.cat([mask, (new != EOS).long()], dim=1)
    state = SequenceState.from_cache(model, out.sequences, out[model.cache_argument], attention_mask=seen)
    plain = [
        [i for i, real in zip(row, keep, strict=True) if real] for row, keep in zip(out.sequences.tolist(), seen.tolist(), strict=True)
    ]
    assert plain == [list(row.token_ids) for group in state.rows for row in group]
    wanted = continuous(generate.text(model))(plain, max_tokens=4)
    assert wanted == continuous(generate.text(model))(state, max_tokens=4)


def test_threads_do_not_see_the_masks_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_cont.engine.drawing.masking._FEW_WORDS", 0)  # as with a large vocabulary
    processor = adapters.logits_processor("[^a]+(é.*)?", TOKENS).of(1)
    texts = ["", "xé"]  # both allow most tokens, not the same
    wanted = [allowed(processor, text)[0] for text in texts]
    assert wanted[0] != wanted[1]
    wrong: list[str] = []

    def ask(text: str, right: set[bytes]) -> None:
        wrong.extend(text for _ in range(400) if allowed(processor, text)[0] != right)

    threads = [threading.Thread(target=ask, args=pair) for pair in zip(texts, wanted, strict=True)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_a_tokenizer_or_a_model_in_the_place_of_the_constraint_is_told_so() -> None:
    for given in (TOKENS, random_model("llama")):
        with pytest.raises(OptionError, match="The constraint comes first"):
            adapters.logits_processor(given, Person)


def test_the_cache_of_several_rows_goes_on_behind_ends_and_padding() -> None:
    model = random_model("llama")
    rows = [ids("one"), ids("two of them")]
    width = max(map(len, rows))
    padded = torch.tensor([[EOS] * (width - len(row)) + row for row in rows])
    seen = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    processor = adapters.logits_processor(fsm.choice(["a", "bcd"]), TOKENS).of(padded)
    out = model.hugging_face.generate(
        padded, attention_mask=seen, logits_processor=[processor], max_new_tokens=9, return_dict_in_generate=True, pad_token_id=EOS
    )
    with pytest.raises(OptionError, match=r"of one shape .* join 1 for each token to it, 0 behind the end of a row"):
        SequenceState.from_cache(model, out.sequences, out[model.cache_argument], attention_mask=seen)
    with pytest.raises(OptionError, match="After a search with beams the cache is that of the beams"):
        SequenceState.from_cache(model, out.sequences[:1], out[model.cache_argument])
    mask = torch.cat([seen, (out.sequences[:, width:] != EOS).long()], dim=1)
    state = SequenceState.from_cache(model, out.sequences, out[model.cache_argument], attention_mask=mask)
    write = continuous(generate.regex(model, "[a-z]{3}"))
    assert list(write(state + "!")) == list(write(state.detach_cache() + "!"))
