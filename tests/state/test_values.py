"""Values are what they hold: copies are they themselves, pickles travel to other processes, and what is shown says what they are."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel

import fsm
from outlines_cont import BatchedExecutor, Branch, Chat, SequenceState, continuous, control, errors, generate, models, policies, samplers
from outlines_cont.control import Controller
from outlines_cont.errors import IncompleteOutput, ModelMismatch, NotPicklable, OptionError, StateFileError
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies.text_scan import Alternatives
from tests.chat_models import chat_model
from tests.fakes import FakeTokenizer, random_model, random_network
from tests.page_server import PageServer
from tests.saved_model import save_model
from tests.tokenizer_kinds import tokenizer_of


class Person(BaseModel):
    """A type that another process can import."""

    name: str


@pytest.fixture(scope="module")
def tiny() -> HuggingFaceModel:
    return models.tiny()


def _again(value: Any) -> Any:
    return _loaded(pickle.dumps(value))


def _loaded(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301  # our own


def test_copies_of_values_are_the_values_themselves() -> None:
    model = random_model()
    generator = generate.regex(model, "[ab]{2}")
    write = continuous(generator)
    state = write("the", rng=1)
    values = [model, tokenizer_of("GPT-2"), generator, write, state, state.fork(2), fsm.regex("a+"), Chat(chat_model("plain"))]
    for value in (*values, fsm.json_schema({"type": "integer"}), control.Shared()):
        assert copy.copy(value) is value or isinstance(value, control.Shared)
        assert copy.deepcopy(value) is value
        assert copy.deepcopy({"here": [value]})["here"][0] is value


class _Holds(Controller):
    """Forks while it holds values of every kind."""

    def __init__(self, *held: Any) -> None:
        self.held = held
        self.written: list[int] = []

    def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        self.written += last_append
        if len(self.written) >= 2:
            return []
        token_ids = [self.held[0].tokenizer.encode(text) for text in "ab"]
        return [Branch(ff_tokens=[ids]) for ids in (token_ids if not self.written else token_ids[:1])]


def test_a_controller_that_holds_values_can_fork() -> None:
    model = random_model()
    generator = generate.text(model)
    state = continuous(generator)("the", max_tokens=1)
    result = control.run(model, _Holds(state, generator, continuous(generator), model), "the")
    assert sorted(result.texts) == ["aa", "ba"]


def test_a_model_is_pickled_as_it_was_opened_and_opened_once(tiny: HuggingFaceModel, tmp_path: Path) -> None:
    other = models.tiny(dtype=torch.float64)
    assert _again(tiny) is tiny
    assert _again(other) is other
    assert len(pickle.dumps(tiny)) < 1000
    saved = models.transformers(save_model(tmp_path), dtype="float64")
    assert _again(saved) is saved
    data, fingerprint = pickle.dumps(saved), saved.fingerprint
    del saved
    first = _loaded(data)
    assert _loaded(data) is first
    assert (first.dtype, first.fingerprint) == (torch.float64, fingerprint)
    assert pickle.dumps(first) == data


def test_two_models_opened_alike_stay_two() -> None:
    first, second = models.tiny(), models.tiny()
    assert (_again(first), _again(second)) == (first, second)
    assert pickle.dumps(first) != pickle.dumps(second)


def test_a_relative_path_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(models.transformers("m"))
    monkeypatch.chdir("/")
    assert _loaded(data).vocab_size == 300


def test_no_access_token_is_pickled(tmp_path: Path) -> None:
    saved = models.transformers(save_model(tmp_path), token="hf_secret", local_files_only=True)
    assert b"hf_secret" not in pickle.dumps(saved)
    assert b"local_files_only" in pickle.dumps(saved)


def test_weights_that_have_changed_since_are_refused(tmp_path: Path) -> None:
    data = pickle.dumps(models.transformers(save_model(tmp_path)))
    save_model(tmp_path, seed=1)
    with pytest.raises(ModelMismatch, match=r"expected the model that was pickled.*opens another one"):
        _loaded(data)


def test_what_cannot_be_pickled_says_why_and_what_to_do() -> None:
    model = models.from_transformers(random_network("llama"), random_model().tokenizer)
    generator = generate.text(model)
    state = continuous(generator)("the", max_tokens=1)
    for value in (model, generator, continuous(generator), state):
        with pytest.raises(NotPicklable, match=r"models\.transformers\(path\).*state\.save"):
            pickle.dumps(value)
    assert issubclass(NotPicklable, TypeError)


def test_generators_are_made_anew_of_what_they_were_made_of(tiny: HuggingFaceModel) -> None:
    sampler = samplers.multinomial(2, temperature=0.7)
    made = [
        generate.text(tiny, sampler=sampler),
        generate.regex(tiny, pattern="[0-9]{2}", sampler=sampler, force=False),
        generate.choice(tiny, ["yes", "no"], sampler=sampler),
        generate.json(model=tiny, schema=Person, sampler=sampler, max_retries=1),
        generate.json(tiny, {"type": "object"}, sampler=sampler, whitespace="none"),
        generate.format(tiny, int, sampler=sampler),
        generate.cfg(tiny, 'start: "a" | "b"', sampler=sampler),
        generate.choice(tiny, ["abe", "ffd"], sampler=sampler, policies=[policies.ban("b")]),
        generate.fsm(tiny, fsm.regex("[a-c]{2}").named("it") + ": " + fsm.types.boolean, sampler=sampler),
    ]
    for generator in made:
        again = _again(generator)
        assert (again.model, again.source, repr(again.sampler)) == (tiny, generator.source, repr(sampler))
        results = [continuous(g)("Message: ", max_tokens=8, rng=1) for g in (generator, again, _again(again))]
        assert results[0] == results[1] == results[2]
        assert results[0].values == results[1].values
        assert _again(continuous(generator)).generator.source == generator.source


def test_a_generator_that_was_changed_by_hand_is_refused(tiny: HuggingFaceModel) -> None:
    with pytest.raises(NotPicklable, match="a function of `generate`"):
        pickle.dumps(replace(generate.regex(tiny, "a"), parse=len))


def test_what_changes_after_the_call_changes_no_pickle(tiny: HuggingFaceModel) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    generator, expression = generate.json(tiny, schema), fsm.json_schema(schema)
    schema["properties"] = {}
    assert _again(generator).source == generator.source
    assert _again(expression) == expression


def test_a_state_is_pickled_as_its_file(tiny: HuggingFaceModel) -> None:
    write = continuous(generate.regex(tiny, "[a-z]{4,9}", sampler=samplers.multinomial(2)))
    cut = write(["Name: ", "City: "], max_tokens=2, rng=3)
    again = _again(cut)
    assert again == cut
    assert again.weights.equal(cut.weights)
    assert again.cached.equal(cut.cached)
    assert write.resume(again) == write.resume(cut)
    assert _again([cut, cut.fork(2)])[1] == cut.fork(2)
    failed = continuous(generate.text(tiny))(["a", "x " * 3000], max_tokens=1)
    assert [type(error).__name__ for (error,) in _again(failed).errors] == ["NoneType", "SavedError"]
    for empty in (cut[0:0, ...], cut[:, 0:0, :], cut[..., 0:0]):
        assert (_again(empty), _again(empty).shape) == (empty, empty.shape)
    inside = cut.tokens[..., 2:]
    assert cut.tokens[..., :2] + _again(inside) == cut


def test_states_are_saved_to_and_loaded_from_buffers(tiny: HuggingFaceModel) -> None:
    state = continuous(generate.text(tiny))("Message: ", max_tokens=2)
    buffer = io.BytesIO()
    state.save(buffer)
    data = buffer.getvalue()
    assert SequenceState.load(io.BytesIO(data), tiny) == state
    with pytest.raises(StateFileError, match=r"seek\(0\)"):
        SequenceState.load(buffer, tiny)
    for wrong in (3, io.StringIO(), b"path"):
        with pytest.raises(TypeError, match="expected a path, or a file or buffer that is open for bytes"):
            state.save(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected a path, or a file or buffer that is open for bytes"):
            SequenceState.load(wrong, tiny)  # type: ignore[arg-type]
    for broken in (data[:100], data[:-1], b"\xff" * 64, data.replace(b"drawn", b"drown", 1)):
        with pytest.raises(StateFileError, match=r"BytesIO.*Nothing was loaded"):
            SequenceState.load(io.BytesIO(broken), tiny)


def test_every_error_can_be_pickled() -> None:
    incomplete = IncompleteOutput("cut", "text", "length")
    incomplete.results = ["a"]
    again = _again(incomplete)
    assert (str(again), again.text, again.reason, again.results) == ("cut", "text", "length", ["a"])
    for base in (errors.OutlinesContError, fsm.FSMError):
        kinds = vars(sys.modules[base.__module__]).values()
        for kind in [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, base)]:
            error = base.__new__(kind)
            error.args = ("what was expected",)
            assert (type(_again(error)), str(_again(error))) == (kind, "what was expected")
    assert _again(OptionError("wrong", "n")).option == "n"


OTHER_PROCESS = """\
import pickle
from pathlib import Path
from tests.state.test_values import _written
work = pickle.loads(Path("work").read_bytes())
Path("done").write_bytes(pickle.dumps([_written(*one) for one in work]))
"""
"""What a worker of a pool of processes does; it has opened no model before."""


def _written(generator: generate.Generator, prompt: str) -> SequenceState:
    return continuous(generator)(prompt, max_tokens=3, rng=1)


def test_another_process_writes_what_this_one_writes(tiny: HuggingFaceModel, page_server: PageServer, tmp_path: Path) -> None:
    generator = generate.json(tiny, Person, sampler=samplers.multinomial(1))
    prompts = ["Name: ", "City: "]
    script = tmp_path / "worker.py"
    (tmp_path / "work").write_bytes(pickle.dumps([(generator, prompt) for prompt in prompts]))
    script.write_text(OTHER_PROCESS, encoding="utf-8")
    assert page_server.run(script) == (0, "", "")
    states = pickle.loads((tmp_path / "done").read_bytes())  # noqa: S301  # our own
    assert states == [_written(generator, prompt) for prompt in prompts]
    assert all(state.model is tiny for state in states)
    assert continuous(generator).resume(states[0]).values == continuous(generator).resume(_written(generator, "Name: ")).values


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (policies.ban({"ab": 0.5}), "ban({'ab': 0.5})"),
        (policies.ban(["ab", "c"]), "ban(['ab', 'c'])"),
        (policies.ban(["a", "b", "c", "d"]), "ban(['a', 'b', 'c', ... (4 of them)])"),
        (policies.replace({"a": "b"}), "replace({'a': 'b'})"),
        (policies.replace({"a": "b"}, at_most=2), "replace({'a': 'b'}, at_most=2)"),
        (Alternatives(policies.ban(["a"]), 2, FakeTokenizer()), "ban(['a'])"),
        (control.Shared(), "Shared({})"),
    ],
)
def test_what_is_shown_says_what_it_is(value: object, shown: str) -> None:
    assert shown == repr(value)


def test_a_conversation_is_shown_with_its_length() -> None:
    with BatchedExecutor(random_model()) as executor:
        conversation = executor.create("the name", seed=7)
        assert f"<Conversation of {len(conversation)} tokens, {len(conversation)} pending>" == repr(conversation)
        assert conversation.seed == 7
        conversation.close()
        assert repr(conversation) == "<Conversation, closed>"


def test_conversations_are_equal_by_template_and_messages() -> None:
    model = chat_model("plain")
    one, other = Chat(model).user("a"), Chat(model).user("a")
    assert one == other
    assert hash(one) == hash(other)
    assert one != one.user("b")
    assert one != "a"
    assert Chat(model)
    assert len(Chat(model)) == 0
