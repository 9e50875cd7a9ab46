"""What a call, a step or a program refuses, does with nothing to do, says of itself, and makes of code of users that goes wrong."""

from __future__ import annotations

import copy
import inspect
import json
import math
import pickle
import signal
import sys
import threading
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from pydantic import AfterValidator, BaseModel, Field

import fsm
from outlines_cont import (
    DEFAULT_MAX_TOKENS,
    Branch,
    PieceOptions,
    RowView,
    SequenceState,
    TokenSet,
    TokenStream,
    continuous,
    control,
    engine_of,
    errors,
    generate,
    models,
    policies,
    samplers,
)
from outlines_cont.cli.options import ExtractOptions
from outlines_cont.errors import (
    ContextLengthError,
    IncompleteOutput,
    InvalidLogits,
    LengthWarning,
    OptionError,
    OutlinesContError,
    ResumeError,
    ScriptError,
    TokenizerError,
    UnknownOption,
    UnsupportedBranch,
    UnsupportedModel,
    UserCodeError,
    located,
)
from outlines_cont.generation.options import _CHECKED, Options, checked_policies
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies import Constraint
from tests.engine.test_engine_loop import Planned, _free, _write
from tests.fakes import FakeTokenizer, fresh_model, random_model, random_network, recurrent_network
from tests.saved_model import save_model


def test_a_search_needs_rows_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HuggingFaceModel, "can_stack", False)
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    with pytest.raises(UnsupportedModel, match=r"samplers\.best_of\(n\)"):
        generate.text(model, sampler=samplers.beam_search(2))("the", max_tokens=2)
    assert generate.text(model, sampler=samplers.best_of(2))("the", max_tokens=2, rng=0)


def test_a_piece_that_its_generator_would_not_write_is_not_resumed() -> None:
    model = random_model()
    letters, digits = (continuous(generate.regex(model, pattern, end="eos")) for pattern in ("[a-z]{9}", "[0-9]{9}"))
    cut = letters("the ", max_tokens=3)
    (row,) = cut.rows[0]
    assert row.piece is not None
    other = digits("the ", max_tokens=3).rows[0][0].piece
    assert other is not None
    forged = replace(row, piece=replace(row.piece, source=other.source))
    with pytest.raises(ResumeError, match="its last piece is not a prefix of what the generator"):
        digits.resume(SequenceState(model, ((forged,),), 0))
    assert letters.resume(cut).finish_reasons == [["constraint"]]


def test_a_prompt_that_cannot_be_read_is_refused_at_the_start() -> None:
    with pytest.raises(ContextLengthError):
        control.start(random_model(), lambda *_: [], "x" * 5000)


def test_a_recurrent_model_has_no_bytes_to_budget() -> None:
    async def script() -> None:
        await control.fixed("a")

    model = models.from_transformers(recurrent_network(), FakeTokenizer())
    with pytest.raises(OptionError, match="expected no `kv_bytes` for a recurrent model") as caught:
        control.run(model, script, "the", budget=control.Budget(kv_bytes=10**9))
    assert caught.value.option == "kv_bytes"


def test_a_constraint_says_of_whole_texts_whether_they_are_of_its_language() -> None:
    model = random_model()
    (policy,) = (p for p in generate.regex(model, "ab+").policies(Options.of({})) if isinstance(p, Constraint))
    for text, expected in (("ab", True), ("abbb", True), ("a", False), ("ba", False), ("abc", False), ("", False)):
        assert expected is policy.accepts(model.tokenizer.encode_inside(text, ()))


def test_a_replacement_that_knows_no_tokens_says_how_it_learns_them() -> None:
    state = continuous(generate.text(random_model()))("a", max_tokens=2)
    policy = policies.replace({"a": "b"})
    with pytest.raises(TypeError, match="expected a policy for a model"):
        policy.initial(state.rows[0][0])  # type: ignore[arg-type]


@pytest.mark.parametrize("sampler", [samplers.greedy(), samplers.best_of(2), samplers.beam_search(2)], ids=str)
def test_a_model_without_one_finite_logit_says_so_whatever_the_sampler(sampler: Any) -> None:
    network = random_network("llama")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(math.nan)
    model = models.from_transformers(network, FakeTokenizer())
    with pytest.raises(InvalidLogits, match="check the checkpoint"):
        generate.text(model, sampler=sampler)("a", max_tokens=2)


def test_a_token_of_the_tokenizer_that_the_model_lacks_is_named() -> None:
    network = random_network("llama")
    network.resize_token_embeddings(300)
    write = generate.text(models.from_transformers(network, FakeTokenizer()))
    assert write("a", max_tokens=1) is not None
    with pytest.raises(TokenizerError, match="from 0 to 299.*Resize the embedding"):
        write("the name of", max_tokens=1)
    with pytest.raises(TokenizerError, match="from 0 to 299, those of the model, got 300"):
        write([3, 300], max_tokens=1)


def test_a_state_is_appended_as_it_is_added() -> None:
    state = continuous(generate.text(random_model()))("the name", max_tokens=2)
    both = state.append(state)
    assert both == state + state
    assert torch.equal((state + state).weights, both.weights)
    with pytest.raises(OptionError, match=r"'as_is' with a state.*Append its texts, `list\(other\)`"):
        state.append(state, boundary="heal")


def _always(**branch: Any) -> Planned:
    return Planned(lambda state, row: [Branch(sample_mask=TokenSet.all, **branch)])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"temperature": 0.5}, {"temperature": 0.7}, "different temperatures for the same sample"),
        ({"ff_tokens": [[5, 6]]}, {"ff_tokens": [[5, 7]]}, "append sequences after the same sample"),
    ],
)
def test_policies_that_want_different_things_of_one_sample(first: dict[str, Any], second: dict[str, Any], message: str) -> None:
    model = random_model()
    agree = [_always(**first), _always(**first)] if "temperature" in first else [_always(**first), Planned(_free)]
    good, bad = _write(model, [[3, 4]] * 2, [agree, [_always(**first), _always(**second)]], max_tokens=2)
    assert good.error is None
    assert isinstance(bad.error, UnsupportedBranch)
    assert message in str(bad.error)


def _forks(state: int, row: RowView) -> list[Branch]:
    return [Branch(sample_mask=TokenSet.all)] * 2


@pytest.mark.parametrize("sampler", [samplers.greedy(), samplers.beam_search(2)])
def test_a_policy_forks_no_row_of_a_call(sampler: Any) -> None:
    write = generate.text(random_model(), sampler=sampler)
    with pytest.raises(UnsupportedBranch, match=r"Fork the state before the call, `state.fork\(n\)`, or the script before `gen`"):
        write("the", max_tokens=3, policies=[Planned(_forks)])


def test_a_policy_that_calls_its_own_model_fails_and_the_engine_goes_on() -> None:
    model = random_model()
    write = generate.text(model)

    def calls(state: int, row: RowView) -> list[Branch]:
        write("a", max_tokens=1)
        return _free(state, row)

    with pytest.raises(UnsupportedBranch, match="Call it after the text is complete"):
        write("the", max_tokens=3, policies=[Planned(calls)])
    assert write("the", max_tokens=3) == write("the", max_tokens=3, policies=[Planned(_free)])


def test_what_leaves_a_controller_as_no_error_is_one_of_the_program() -> None:
    class Exits(control.Controller):
        def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
            raise SystemExit(3)

    with pytest.raises(ScriptError, match=r"raised SystemExit\(3\)") as caught:
        control.run(random_model(), Exits(), "the").check()
    assert caught.value.result.errors == [caught.value]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def model() -> HuggingFaceModel:
    return models.tiny()


def test_logits_for_fewer_tokens_than_the_tokenizer_has_are_refused(model: HuggingFaceModel) -> None:
    stream = TokenStream(model.tokenizer)
    with pytest.raises(ValueError, match="expected `logits` of all 1283 tokens of the tokenizer, got 5"):
        stream.push_logits(torch.zeros(5), samplers.greedy())
    padded = torch.nn.functional.one_hot(torch.tensor(70), 2000).float()
    assert stream.push_logits(padded, samplers.greedy()).token_ids == (70,)


def test_a_generator_shows_how_it_was_made(model: HuggingFaceModel) -> None:
    hot = samplers.multinomial(2, top_k=3)
    for generator, shown in (
        (generate.text(model), ", sampler=greedy())"),
        (generate.regex(model, "[a-z]+", sampler=hot), ", '[a-z]+', sampler=multinomial(2, top_k=3))"),
        (generate.choice(model, ["a", "b"]), ", ['a', 'b'], sampler=greedy())"),
        (generate.json(model, Order), f", {__name__}.Order, sampler=greedy())"),
        (generate.json(model, {"type": "integer"}), ", {'type': 'integer'}, sampler=greedy())"),
        (generate.format(model, int), ", builtins.int, sampler=greedy())"),
        (generate.cfg(model, 'start: "a"+'), """, 'start: "a"+', sampler=greedy())"""),
        (generate.fsm(model, fsm.regex("a")), ", regex('a'), sampler=greedy())"),
    ):
        kind = next(iter(json.loads(generator.source)))
        assert f"generate.{kind}({model!r}{shown}" == str(generator) == repr(generator)


def test_a_text_stands_for_itself_where_an_expression_is_expected(model: HuggingFaceModel) -> None:
    assert generate.fsm(model, "yes")("Message: ") == "yes"
    assert generate.fsm(model, fsm.choice(["yes"]))("Message: ") == "yes"


def test_loading_the_bundled_model_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    models.tiny()
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("saved"))


class Order(BaseModel):
    name: str


def test_an_option_of_loading_that_there_is_reaches_transformers(saved: Path) -> None:
    network: Any = models.transformers(saved, attn_implementation="eager", rms_norm_eps=0.5, local_files_only=True).hugging_face
    assert (network.config._attn_implementation, network.config.rms_norm_eps) == ("eager", 0.5)


def test_a_function_that_knows_its_options_keeps_its_signature() -> None:
    assert "top_k" in inspect.signature(samplers.multinomial).parameters
    of_json = inspect.signature(generate.json).parameters
    assert {*inspect.signature(generate.regex).parameters} - {"pattern"} < {*of_json}
    assert {*inspect.signature(fsm.json_schema).parameters} < {*of_json}
    assert (of_json["end"].default, of_json["whitespace"].default, of_json["show_schema"].default) == ("eos", "one_space", False)
    assert all("options" not in inspect.signature(getattr(generate, name)).parameters for name in ("text", "regex", "json", "cfg"))
    assert samplers.multinomial.__name__ == "multinomial"
    of_best, of_multinomial = (inspect.signature(made).parameters for made in (samplers.best_of, samplers.multinomial))
    assert [*of_best] == [*of_multinomial]
    assert (of_best["n"].default, of_multinomial["n"].default) == (inspect.Parameter.empty, 1)
    with pytest.raises(TypeError, match="'n'"):
        samplers.best_of()  # type: ignore[call-arg, unused-ignore]
    with pytest.raises(UnknownOption, match="options of `best_of` .* Did you mean 'top_k'"):
        samplers.best_of(2, topk=3)  # type: ignore[call-arg, unused-ignore]


def test_the_prefix_cache_of_a_model_is_turned_off_by_its_bytes() -> None:
    model = fresh_model()
    write = generate.text(model)
    prompt = "word " * 40
    model.prefix_cache.max_bytes = 1 << 20
    text = write(prompt, max_tokens=2)
    assert model.prefix_cache.entries
    model.prefix_cache.max_bytes = 0
    assert (model.prefix_cache.entries, model.prefix_cache.nbytes, model.prefix_cache.is_on) == (0, 0, False)
    assert text == write(prompt, max_tokens=2)
    assert model.prefix_cache.entries == 0
    model.prefix_cache.max_bytes = 1 << 20
    write(prompt, max_tokens=2)
    assert model.prefix_cache.entries


def test_a_piece_has_a_length_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut by a limit that nobody gave, a text says so; by one that was given, or by the context, it does not."""
    monkeypatch.setattr("outlines_cont.generation.options.DEFAULT_MAX_TOKENS", 5)
    model = random_model()
    write = continuous(generate.regex(model, "[ab]{30,}"))
    with pytest.warns(LengthWarning, match="2 of 2 texts were cut after 5 tokens") as told:
        cut = write(["a", "b"])
    assert __file__ == told[0].filename  # the line of the user
    with pytest.warns(LengthWarning, match="1 of 1 texts"):
        more = write.resume(cut.take([(0, 0)]))
    assert [len(row.token_ids) for row in (cut.rows[0][0], more.rows[0][0])] == [7, 12]
    with pytest.warns(LengthWarning), pytest.raises(IncompleteOutput, match="Raise `max_tokens`"):
        generate.regex(model, "[ab]{30,}")("a")
    with pytest.warns(LengthWarning, match="cut after 7 tokens"):  # `min_tokens` wants more
        write("a", min_tokens=7)
    with warnings.catch_warnings(action="error"):
        assert write("a", max_tokens=5).finish_reasons == [["length"]]
        assert write("a", max_tokens=None).finish_reasons == [["stop"]]
        assert continuous(generate.regex(model, "[ab]{4}"))("a").finish_reasons == [["constraint"]]


def test_the_command_line_has_the_same_length() -> None:
    assert ExtractOptions(input=[""], schema="").most_tokens == DEFAULT_MAX_TOKENS


def test_every_option_of_a_call_has_a_type_a_check_and_a_default() -> None:
    assert {*PieceOptions.__annotations__} == {*_CHECKED}
    assert {field.name for field in fields(Options)} == {*_CHECKED, "given", "reply"}


def test_one_policy_needs_no_list_and_a_text_is_none() -> None:
    ban = policies.ban("a")
    assert checked_policies(ban) == checked_policies([ban]) == checked_policies((ban,)) == (ban,)


_CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OutlinesContError)]


def _made(kind: type[OutlinesContError]) -> tuple[OutlinesContError, dict[str, Any]]:
    """An error of a class, and the facts that it was given."""
    parts = list(inspect.signature(kind.__init__).parameters) if inspect.isfunction(kind.__init__) else []
    facts: dict[str, Any] = {name: 7 + at for at, name in enumerate(parts[2:])}
    make: Any = kind
    return make("expected this, got that", *facts.values()), facts


@pytest.mark.parametrize("kind", _CLASSES)
def test_an_error_shows_its_message_and_keeps_its_facts(kind: type[OutlinesContError]) -> None:
    error, facts = _made(kind)
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 (its own bytes)
        assert kind is type(same)
        assert (str(same), same.args) == ("expected this, got that", ("expected this, got that",))
        assert facts == vars(same)
        assert (same.results, same.errors) == (None, None)
    assert kind is OutlinesContError or len(kind.__mro__) > 4, "it is also one of the errors of Python"
    for sample, where in ((None, "batch 2"), (1, "batch 2, sample 1")):
        there = located(error, 2, sample)
        assert (kind, facts) == (type(there), vars(there))
        assert f"{where}: expected this, got that" == str(there)
        assert str(error) == "expected this, got that"


def test_an_error_of_somebody_else_gets_one_note_for_each_place() -> None:
    error = KeyError("a")
    assert located(error, 0) is located(error, 0) is located(error, 0, 1) is error
    assert error.__notes__ == ["This was batch 0 of the call.", "This was batch 0, sample 1 of the call."]


def _leaves(value: str) -> str:
    sys.exit(3)


def _interrupts(value: str) -> str:
    raise KeyboardInterrupt


def _is_interrupted(value: str) -> str:
    signal.raise_signal(signal.SIGINT)
    return value


def _record(validate: Any) -> Any:
    class Record(BaseModel):
        name: Annotated[str, Field(pattern="^[ab]{1,2}$"), AfterValidator(validate)]

    return Record


def _writer(validate: Any, **options: Any) -> Any:
    return generate.json(random_model(), _record(validate), **options)


@pytest.mark.parametrize("validate", [_leaves, _interrupts])
@pytest.mark.parametrize("sampler", [samplers.greedy(), samplers.beam_search(2)])
def test_a_validator_that_leaves_fails_its_row_alone(validate: Any, sampler: Any) -> None:
    other = generate.text(random_model()).stream("the name", max_tokens=20)
    written = next(other)
    state = continuous(_writer(validate, sampler=sampler))(["a", "no"], max_tokens=40)
    for group in state.errors:
        assert all(isinstance(error, UserCodeError) for error in group if error is not None)
        assert any(group)
        assert Path(__file__).name in str(group[0])
    assert written + "".join(other) == generate.text(random_model())("the name", max_tokens=20)


@pytest.mark.parametrize("validate", [_leaves, _interrupts])
def test_a_validator_in_another_thread_does_not_end_this_call(validate: Any) -> None:
    errors: list[Any] = []
    thread = threading.Thread(target=lambda: errors.append(continuous(_writer(validate))("a", max_tokens=40).errors[0][0]), daemon=True)
    wanted = generate.text(random_model())("the name", max_tokens=60)
    thread.start()
    assert wanted == generate.text(random_model())("the name", max_tokens=60)
    thread.join(60)
    assert isinstance(errors[0], UserCodeError)


def test_ctrl_c_in_a_validator_ends_the_call_and_no_other() -> None:
    other = generate.text(random_model()).stream("the name", max_tokens=20)
    written = next(other)
    with pytest.raises(KeyboardInterrupt):
        _writer(_is_interrupted)("a", max_tokens=40)
    assert written + "".join(other) == generate.text(random_model())("the name", max_tokens=20)
    assert engine_of(random_model()).num_running == 0


def test_a_parser_that_leaves_fails_its_row_alone() -> None:
    import dataclasses

    def parse(text: str) -> Any:
        return sys.exit(1) if text == "yes" else text

    write = generate.choice(random_model(), ["yes", "no"], sampler=samplers.multinomial(12))
    state = continuous(dataclasses.replace(write, parse=parse))("the name is>", rng=0)
    for text, value, error in zip(state, state.values[0], state.errors[0], strict=True):
        assert (value, type(error)) == (("no", type(None)) if text.endswith("no") else (None, UserCodeError))
    assert {"the name is>no", "the name is>yes"} == set(state)
