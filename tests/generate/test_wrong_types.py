"""Easy mistakes when a model or a generator is made: each is refused there, with what to write instead."""

from __future__ import annotations

import inspect
import json
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from transformers import DynamicCache

import fsm
import outlines_cont
from outlines_cont import (
    BatchedExecutor,
    Branch,
    Engine,
    Guidance,
    SequenceState,
    Template,
    Tokens,
    TokenSet,
    TokenStream,
    continuous,
    control,
    engine_of,
    generate,
    models,
    policies,
    samplers,
)
from outlines_cont.errors import OptionError, OutlinesContError, UnknownOption
from outlines_cont.models import HuggingFaceModel
from tests.fakes import VOCAB_SIZE, FakeTokenizer, random_model
from tests.saved_model import save_model


@pytest.fixture(scope="module")
def model() -> HuggingFaceModel:
    return models.tiny()


@pytest.mark.parametrize(
    ("sampler", "advice"),
    [
        ("greedy", "Write `samplers.greedy()`."),
        (samplers.greedy, "Write `samplers.greedy()`."),
        (samplers.multinomial, "Write `samplers.multinomial()`."),
        (samplers.Multinomial, "Write `samplers.multinomial()`."),
        (samplers.best_of, "Write `samplers.best_of(n)`."),
        ("beam_search", "Write `samplers.beam_search(n)`."),
        ("hot", "Make one, such as `samplers.greedy()` or `samplers.multinomial()`."),
        (3, "Make one, such as `samplers.greedy()` or `samplers.multinomial()`."),
    ],
)
def test_what_is_no_sampler_is_refused_with_what_was_meant(
    model: HuggingFaceModel, sampler: object, advice: str
) -> None:
    with pytest.raises(OptionError) as refused:
        generate.text(model, sampler=sampler)  # type: ignore[arg-type]
    assert str(refused.value).endswith(advice)


@pytest.mark.parametrize("name", ["cfg", "choice", "format", "fsm", "json", "regex"])
def test_a_model_that_is_not_the_first_argument_is_refused_with_the_order(model: HuggingFaceModel, name: str) -> None:
    with pytest.raises(OptionError, match=rf"Write `generate\.{name}\(model, \.\.\.\)`"):
        getattr(generate, name)(Order, model)


def test_what_is_no_tensor_and_no_cache_is_refused_where_a_cache_is_taken(model: HuggingFaceModel) -> None:
    ids, cache = torch.tensor([[1, 2, 3]]), DynamicCache()
    wrong: Any
    for wrong, option in (
        ({"token_ids": [1, 2, 3], "cache": cache}, "token_ids"),
        ({"token_ids": ids, "cache": None}, "cache"),
        ({"token_ids": ids, "cache": cache, "attention_mask": [1]}, "attention_mask"),
    ):
        with pytest.raises(OptionError, match=f"as `{option}`, got") as refused:
            SequenceState.from_cache(model, **wrong)
        assert option == refused.value.option


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


@pytest.mark.parametrize("wrong", ["gpt2", ["a"], None])
def test_what_is_no_model_is_refused_when_the_generator_is_made(wrong: object) -> None:
    with pytest.raises(OptionError, match="expected a model as the first argument"):
        generate.choice(wrong, ["a"])  # type: ignore[arg-type]


def test_a_text_stands_for_itself_where_an_expression_is_expected(model: HuggingFaceModel) -> None:
    assert generate.fsm(model, "yes")("Message: ") == "yes"
    with pytest.raises(OptionError, match="got int"):
        generate.fsm(model, 5)  # type: ignore[arg-type]
    assert generate.fsm(model, fsm.choice(["yes"]))("Message: ") == "yes"


@pytest.mark.parametrize(
    ("source", "message"), [("", "hub id"), (5, "hub id"), ("/nonexistent/folder", "does not exist")]
)
def test_a_source_of_a_model_is_checked_before_anything_is_looked_up(source: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        models.transformers(source)  # type: ignore[arg-type]


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"has no config\.json"):
        models.transformers(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(OptionError, match="no CUDA device"):
        models.tiny(device="cuda")


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x"])
def test_the_name_of_no_device_is_refused(device: str) -> None:
    with pytest.raises(OptionError, match=f"such as 'cpu', 'cuda'.*got {device!r}"):
        models.tiny(device=device)


def test_loading_the_bundled_model_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    models.tiny()
    assert capfd.readouterr() == ("", "")


TOKEN_FSM = fsm.TokenFSM(fsm.regex("ab+"), fsm.Vocabulary([None, b"a", b"b"], [0]))


@pytest.mark.parametrize("wrong", ["1", None, 1.5, [1], np.array([1, 1])])
def test_what_is_no_state_or_no_token_id_is_refused(wrong: Any) -> None:
    for ask in (TOKEN_FSM.bitmask, TOKEN_FSM.allowed_token_ids, TOKEN_FSM.is_accepting, TOKEN_FSM.forced_text):
        with pytest.raises(TypeError, match="expected one state, an int, received"):
            ask(wrong)
    for ask_both in (TOKEN_FSM.next_state, TOKEN_FSM.explain):
        with pytest.raises(TypeError, match="expected one state, an int, received"):
            ask_both(wrong, 1)
        with pytest.raises(TypeError, match="expected one token id, an int, received"):
            ask_both(1, wrong)


def test_ids_and_states_that_are_not_there_are_named() -> None:
    with pytest.raises(fsm.TokenNotAllowed, match="no id of this vocabulary of 3"):
        TOKEN_FSM.next_state(1, 3)
    with pytest.raises(fsm.UnknownState, match="received 99"):
        TOKEN_FSM.bitmask(99)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: fsm.TokenFSM("ab", TOKEN_FSM.vocabulary), TypeError, "expected an expression, such as"),  # type: ignore[arg-type]
        (lambda: fsm.TokenFSM(fsm.regex("a"), [b"a"]), TypeError, r"Write `fsm\.Vocabulary\("),  # type: ignore[arg-type]
        (lambda: fsm.Vocabulary([b"a", None], 1), fsm.VocabularyError, r"Write \[1\]"),  # type: ignore[arg-type]
        (lambda: fsm.regex("a").repeat("1"), TypeError, "count of a repetition"),  # type: ignore[arg-type]
        (lambda: fsm.regex("a").repeat(0, 1.5), TypeError, "count of a repetition"),  # type: ignore[arg-type]
        (lambda: fsm.regex("a").union(3), TypeError, "expected an expression or a str"),  # type: ignore[arg-type]
    ],
)
def test_what_constraints_are_made_of_is_checked(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("saved"))


class Order(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("call", "option", "advice"),
    [
        (lambda m, o: samplers.multinomial(**o), "topk", "options of `multinomial` .* Did you mean 'top_k'?"),
        (lambda m, o: samplers.greedy(**o), "temprature", "options of `greedy` "),
        (lambda m, o: samplers.beam_search(2, **o), "length_penalti", "Did you mean 'length_penalty'?"),
        (lambda m, o: models.tiny(**o), "dtyp", "options of `tiny` .* Did you mean 'dtype'?"),
        (lambda m, o: models.from_transformers(m, m, **o), "kv_budget", "Did you mean 'kv_budget_bytes'?"),
        (lambda m, o: generate.text(m, **o), "samplr", "options of `text` .* Did you mean 'sampler'?"),
        (lambda m, o: generate.json(m, Order, **o), "whitespac", "options of `json` .* Did you mean 'whitespace'?"),
        (lambda m, o: generate.cfg(m, "start: A", **o), "stric", "options of `cfg` .* Did you mean 'strict'?"),
        (lambda m, o: policies.ban(["a"], **o), "ignorecase", "Did you mean 'ignore_case'?"),
        (lambda m, o: policies.replace({"a": "b"}, **o), "atmost", "Did you mean 'at_most'?"),
        (lambda m, o: control.run(m, None, "a", **o), "budgets", "Did you mean 'budget'?"),
        (lambda m, o: control.arun(m, None, "a", **o), "budgets", "options of `arun` .* Did you mean 'budget'?"),
        (lambda m, o: generate.text(m, **o), "max_tokens", "Give it to the call"),
        (lambda m, o: generate.choice(m, ["a"], **o), "guidance", "Give it to the call"),
        (lambda m, o: generate.text(m, **o), "max_new_tokens", "option of a call: Write `max_tokens`"),
        (lambda m, o: generate.text(m, **o), "temperature", "Give it to the sampler"),
        (lambda m, o: generate.text(m)("a", **o), "tool", r"chat\.assistant\(tools=\[function\]\)"),
        (lambda m, o: generate.text(m)("a", **o), "tools", "Tools belong to conversations"),
        (lambda m, o: generate.text(m)("a", **o), "sampler", r"generate\.text\(model, sampler=...\)"),
        (lambda m, o: generate.text(m)("a", **o), "whitespace", r"generate\.json\(model, schema, whitespace=...\)"),
    ],
)
def test_an_option_that_there_is_none_of_is_named_with_what_was_meant(
    model: HuggingFaceModel, call: Callable[[Any, Any], Any], option: str, advice: str
) -> None:
    with pytest.raises(UnknownOption, match=advice) as refused:
        call(model, {option: 5})
    assert option == refused.value.option
    assert f"got `{option}`" in str(refused.value)


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("devise", "Did you mean 'device'?"),
        ("kv_budget", "Did you mean 'kv_budget_bytes'?"),
        ("atn_implementation", "Did you mean 'attn_implementation'?"),
        ("torch_dtype", "Write `dtype`."),
        ("load_in_4bit", "quantization_config"),
        ("nothing_like_it", "options of `models.transformers`"),  # transformers says so
    ],
)
def test_an_option_of_loading_that_there_is_none_of_is_named(saved: Path, option: str, advice: str) -> None:
    with pytest.raises(UnknownOption, match=advice) as refused:
        models.transformers(saved, **{option: 5})
    assert option == refused.value.option


def test_an_option_of_loading_that_there_is_reaches_transformers(saved: Path) -> None:
    network: Any = models.transformers(
        saved, attn_implementation="eager", rms_norm_eps=0.5, local_files_only=True
    ).hugging_face
    assert (network.config._attn_implementation, network.config.rms_norm_eps) == ("eager", 0.5)


def test_a_function_that_knows_its_options_keeps_its_signature() -> None:
    assert "top_k" in inspect.signature(samplers.multinomial).parameters
    assert "registry" not in inspect.signature(generate.json).parameters
    assert samplers.multinomial.__name__ == "multinomial"
    of_best, of_multinomial = (inspect.signature(made).parameters for made in (samplers.best_of, samplers.multinomial))
    assert [*of_best] == [*of_multinomial]
    assert (of_best["n"].default, of_multinomial["n"].default) == (inspect.Parameter.empty, 1)
    with pytest.raises(TypeError, match="'n'"):
        samplers.best_of()  # type: ignore[call-arg, unused-ignore]
    with pytest.raises(UnknownOption, match="options of `best_of` .* Did you mean 'top_k'"):
        samplers.best_of(2, topk=3)  # type: ignore[call-arg, unused-ignore]


def test_the_prefix_cache_of_a_model_is_turned_off_by_its_bytes() -> None:
    model = random_model()
    with pytest.raises(OptionError, match=r"model\.prefix_cache\.max_bytes = 0"):
        model.prefix_cache = None
    with pytest.raises(OptionError, match="expected a number of bytes"):
        model.prefix_cache.max_bytes = "0"
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


def test_a_value_in_the_place_of_its_class_is_named(model: HuggingFaceModel) -> None:
    with pytest.raises(fsm.SchemaError, match="a value of the class Order.* Pass the class, `Order`"):
        generate.json(model, Order(name="Ana"))


def test_texts_and_tokenizers_of_others_are_refused_by_dry(model: HuggingFaceModel) -> None:
    wrong: Any = ["\n"]
    with pytest.raises(OptionError, match=r"as `breakers` of `DRY`, got \['\\n'\]\. .*breaking_at\(model\.tokenizer"):
        samplers.DRY(breakers=wrong)
    with pytest.raises(OptionError, match=r"`model\.tokenizer`, as `tokenizer`, got str"):
        samplers.DRY().breaking_at("gpt2", ["\n"])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="texts that are not empty"):
        samplers.DRY().breaking_at(model.tokenizer, [""])
    assert samplers.DRY().breaking_at(model.tokenizer, ["\n"]).breakers


def test_guidance_shows_what_it_was_given(model: HuggingFaceModel) -> None:
    with pytest.raises(OptionError, match=r"got \('neg', 2\)"):
        generate.text(model)("a", guidance=("neg", 2))


def test_a_lookbehind_at_the_beginning_is_explained(model: HuggingFaceModel) -> None:
    with pytest.raises(fsm.EmptyLanguage, match="a lookbehind at the beginning: `regex` matches the whole text"):
        generate.regex(model, "(?<=a)b")


WRONG = [object(), 1.5, -1, "zz\0", None, [], [None], b"x", {"a": 1}, torch.zeros(2), math.nan, int, samplers.greedy]


def _calls() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Return a correct call of each public function, as function, positions and options."""
    model, stream = random_model(), TokenStream(FakeTokenizer())
    text = generate.text(model)
    state = continuous(text)("the name", max_tokens=2)
    logits = torch.zeros(VOCAB_SIZE)
    numbers = {"temperature": 1.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.5, "top_a": 0.1}
    penalties = {"logit_bias": {1: 1.0}, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    objects = {"dry": None, "mirostat": None, "xtc": None, "warpers": None}
    options = {"max_tokens": 1, "min_tokens": 0, "stop_at": "x", "stop_token_ids": (), "policies": (), "draft": None}
    flags = {"rng": 1, "heal": False, "keep_stop": False, "guidance": None}
    return {
        "generate.text": (generate.text, (model,), {"sampler": samplers.greedy(), "policies": (), "draft": None}),
        "generate.regex": (generate.regex, (model, "a"), {"force": True}),
        "generate.choice": (generate.choice, (model, ["a"]), {}),
        "generate.json": (generate.json, (model, {"type": "integer"}), {"max_retries": 2}),
        "generate.format": (generate.format, (model, int), {}),
        "generate.cfg": (generate.cfg, (model, 'start: "a"'), {"start": "start"}),
        "generate.fsm": (generate.fsm, (model, fsm.regex("a")), {"max_retries": 1}),
        "generator": (text, ("a",), {**options, **flags}),
        "stream": (
            lambda *a, **o: [*text.stream(*a, max_tokens=1, **o)],
            ("a",),
            {"events": True, "top": 0, "retract": False},
        ),
        "continuous": (continuous, (text,), {}),
        "resume": (continuous(text).resume, (state,), {"max_tokens": 1}),
        "greedy": (samplers.greedy, (), penalties),
        "multinomial": (samplers.multinomial, (1,), numbers | objects),
        "best_of": (samplers.best_of, (2,), {"top_k": 3}),
        "beam_search": (samplers.beam_search, (2,), {"length_penalty": 0.0}),
        "DRY": (samplers.DRY, (), {"multiplier": 0.8, "base": 1.75, "allowed_length": 2, "breakers": ()}),
        "XTC": (samplers.XTC, (), {"threshold": 0.1, "probability": 0.5}),
        "Mirostat": (samplers.Mirostat, (), {"tau": 5.0, "eta": 0.1}),
        "ban": (policies.ban, (["x"],), {"ignore_case": False}),
        "replace": (policies.replace, ({"a": "b"},), {"at_most": 1}),
        "budgets": (models.from_transformers, (model.hugging_face, model.tokenizer), {"kv_budget_bytes": -1}),
        "stack": (SequenceState.stack, ([state],), {}),
        "from_cache": (SequenceState.from_cache, (model, torch.tensor([[1, 2]]), DynamicCache()), {"rng": 1}),
        "load": (SequenceState.load, ("/nonexistent/x", model), {}),
        "save": (state.save, ("/nonexistent/x",), {"kv": True}),
        "fork": (state.fork, (2,), {"same": False}),
        "take": (state.take, ([],), {}),
        "best": (state.best, (1,), {}),
        "append": (state.append, ("x",), {"boundary": "as_is"}),
        "to": (state.to, ("cpu",), {}),
        "TokenStream": (TokenStream, (model.tokenizer,), {"stop_at": "x", "stop_token_ids": (), "prompt": "a"}),
        "push": (stream.push, (70,), {}),
        "push_logits": (stream.push_logits, (logits, samplers.multinomial()), {"mask": None, "rng": 1}),
        "uniform": (stream.push_logits, (logits, samplers.multinomial()), {"uniform": 0.5}),
        "flush": (stream.flush, ("length",), {}),
        "rewind": (stream.push(70).rewind, (1,), {}),
        "TokenSet.of": (TokenSet.of, ([1],), {}),
        "Branch": (Branch, (), {"backtrack": 0, "ff_tokens": [[1]], "sample_mask": None, "temperature": None}),
        "engine_of": (engine_of, (model,), {}),
        "Engine": (Engine, (model,), {"max_rows": 1, "max_batch_tokens": 5}),
        "Guidance": (Guidance, ("no", 2.0), {}),
        "Tokens.of": (Tokens.of, ("x",), {"special": False}),
        "Budget": (control.Budget, (), {"tokens": 3, "forks": 2, "seconds": 1.0}),
        "Template": (Template, ("a",), {}),
        "BatchedExecutor": (BatchedExecutor, (model,), {}),
        "fsm.regex": (fsm.regex, ("a",), {}),
        "fsm.choice": (fsm.choice, (["a"],), {}),
        "fsm.json_schema": (fsm.json_schema, ({"type": "integer"},), {}),
        "fsm.grammar": (fsm.grammar, ('start: "a"', "start"), {}),
        "fsm.substring": (fsm.substring, ("abc",), {}),
        "fsm.until": (fsm.until, ("x",), {}),
        "fsm.TokenFSM": (fsm.TokenFSM, (fsm.regex("a"), TOKEN_FSM.vocabulary), {}),
        "fsm.Vocabulary": (fsm.Vocabulary, ([None, b"a"], [0]), {}),
        "fsm.repeat": (fsm.regex("a").repeat, (1, 2), {}),
        "fsm.accepts": (fsm.regex("a").accepts, ("a",), {}),
    }


CALLS = _calls()


def _is_explained(error: Exception) -> bool:
    """Whether an error is one of ours, or a built-in one that a line of ours raises with a sentence."""
    if isinstance(error, OutlinesContError | fsm.FSMError):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_ours = any(Path(package.__file__).parent in Path(last.filename).parents for package in (fsm, outlines_cont))
    return isinstance(error, TypeError | ValueError | IndexError) and is_ours and (last.line or "").startswith("raise")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_value_of_any_other_type_is_taken_or_refused_with_a_sentence_wherever_it_stands(name: str) -> None:
    call, positions, options = CALLS[name]
    raw = []
    for place in (*range(len(positions)), *options):
        for wrong in WRONG:
            args, named = [*positions], dict(options)
            (args if isinstance(place, int) else named)[place] = wrong  # type: ignore[call-overload]
            try:
                call(*args, **named)
            except Exception as error:
                raw += [] if _is_explained(error) else [(place, wrong, error)]
    assert not raw
