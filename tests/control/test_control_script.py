"""Scripts: fixed and generated text, labels, forks by running again, shared variables, waits."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import continuous, control, generate, models, samplers
from outlines_cont.control import fixed, fork, gen, label, log, shared, stop, text_since
from outlines_cont.errors import DeadlockError, IncompleteOutput, OptionError, ReplayError, ScriptError
from tests.engine.test_engine_loop import Planned
from tests.examples import examples
from tests.fakes import FakeTokenizer, random_model, random_network, saying, scripted_model

FIVE = "Amber\n\nBirch\n\nCedar\n\nDune\n\nElm\n\n"


def test_five_lines_each_stopped_at_a_line_break_exactly() -> None:
    words = FIVE.split("\n\n")

    def says(ids: list[int]) -> dict[int, float]:
        text = model.tokenizer.text_bytes(ids).decode(errors="replace")
        line, number = text.rsplit(". ", 1)[-1], text.count(". ") - 1
        if number < 0:
            return {}
        rest = (words[number] + "\n\n").removeprefix(line)
        # Two line breaks are one token of the fake vocabulary: the stop text ends inside of it.
        return {model.tokenizer.encode(rest if rest.startswith("\n") else rest[:1])[0]: 20.0}

    model = scripted_model(says)

    async def script() -> None:
        await fixed("Five:\n")
        start = label()
        for number in range(1, 6):
            await fixed(f"{number}. ")
            line = await gen(stop_at="\n", keep_stop=True, max_tokens=12)
            assert line.endswith("\n")
        shared.set("result", text_since(start))

    with model.meter() as meter:
        result = control.run(model, script, ">").check()

    lines = "".join(f"{number}. {word}\n" for number, word in enumerate(words[:5], 1))
    assert f"Five:\n{lines}" == result.text
    assert lines == result.shared["result"]
    # Each letter and a line break are sampled; the line break of two is spelled anew.
    assert sum(map(len, words)) + 5 == meter.sampled_tokens
    assert meter.forced_tokens == 0  # what a script appends is given
    assert meter.forwards == meter.sampled_tokens


@pytest.mark.parametrize("keep", [False, True])
def test_a_stop_text_cuts_before_or_behind_it(keep: bool) -> None:
    model = scripted_model(saying("one; two; three"))
    seen = []

    async def script() -> None:
        seen.append(await gen(stop_at=["; "], keep_stop=keep))
        await fixed("!")

    assert control.run(model, script, ">").check().text == ("one; !" if keep else "one!")
    assert seen == ["one; " if keep else "one"]


def test_a_fork_has_variables_of_its_own_and_nothing_is_done_twice() -> None:
    model = random_model()
    side_effects = []

    async def script() -> None:
        mine = ["common"]
        log("before the fork")
        shared.append("log", "a")
        before = await gen(max_tokens=3, name="before")
        place = label()
        index = await fork(3)
        side_effects.append(index)
        mine.append(str(index))
        shared.append("log", str(index))
        await fixed(f" {index}: ")
        after = await gen(max_tokens=4, name="after")
        inner = await fork(2) if index == 1 else 9
        mine.append(str(inner))
        assert text_since(place) == f" {index}: {after}"
        await fixed(f" {before} {'/'.join(mine)}")

    sampler = samplers.multinomial(temperature=20.0)
    with model.meter() as meter:
        result = control.run(model, script, "the", sampler=sampler, rng=3).check()
    assert [fork.text.rsplit(" ", 1)[1] for fork in result.forks] == ["common/0/9", "common/1/0", "common/2/9", "common/1/1"]
    assert [fork.parent for fork in result.forks] == [None, 0, 0, 1]
    before = result.forks[0].captures["before"]
    assert all(f"{before} {index}: " in fork.text for fork, index in zip(result.forks, (0, 1, 2, 1), strict=True))
    assert len({fork.captures["after"] for fork in result.forks}) == 3
    assert result.shared == {"log": "a012"}
    assert [fork.log for fork in result.forks] == ["before the fork\n", "", "", ""]
    # The script ran again for each fork; what it has asked the model for was not generated again.
    assert meter.sampled_tokens == 3 + 3 * 4
    # What it does to the world outside is done again where a fork leaves after it.
    assert Counter(side_effects) == {0: 1, 1: 2, 2: 1}
    again = control.run(model, script, "the", sampler=sampler, rng=3)
    assert result.texts == again.texts


def test_a_script_that_does_something_else_when_run_again_is_refused() -> None:
    runs = []

    async def script() -> None:
        runs.append(1)
        log(f"run {len(runs)}")
        await fork(2)
        await fixed("done")

    result = control.run(random_model(), script, "the", check=False)
    good, bad = result.forks
    assert (good.text, good.error) == ("done", None)
    assert isinstance(bad.error, ReplayError)
    assert "expected the script to request log('run 1') again" in str(bad.error)


def test_a_wait_for_what_is_there_costs_nothing_and_no_names_are_no_wait() -> None:
    async def script() -> None:
        shared.set("a", [1])
        assert await shared.wait("a") == [[1]]
        assert await shared.wait() == []

    with random_model().meter() as meter:
        control.run(random_model(), script, "the").check()
    assert meter.forwards == 0


def test_a_wait_that_nobody_can_fulfil_names_the_variables_within_one_round() -> None:
    model = random_model()
    caught = []

    async def script() -> None:
        index = await fork(3)
        if index == 2:
            try:
                await shared.wait("never")
            except DeadlockError as error:
                caught.append(error.names)
                shared.set("late", 1)
            return
        await shared.wait("never" if index else "other")

    with model.meter() as meter:
        result = control.run(model, script, "the", check=False)
    assert [fork.finish_reason for fork in result.forks] == ["deadlock", "deadlock", "stop"]
    assert isinstance(result.forks[0].error, DeadlockError)
    assert result.forks[0].error.names == ("other",)
    assert "'never'" in str(result.forks[1].error)
    assert caught == [("never",)]
    # The prompt, which the forks have in common.
    assert meter.forwards == 1


def test_programs_may_wait_for_each_other() -> None:
    model = random_model()
    variables = control.Shared()

    async def asks() -> None:
        shared.set("question", "name")
        (answer,) = await shared.wait("answer")
        await fixed(answer)

    async def answers() -> None:
        (question,) = await shared.wait("question")
        await fixed(question)
        shared.set("answer", await gen(max_tokens=3))

    async def main() -> list[control.Result]:
        # Both are there before either runs: one alone would be told that nobody is left who could answer.
        programs = [control.start(model, script, "the", shared=variables) for script in (asks, answers)]
        return await asyncio.gather(*(program.aresult() for program in programs))

    first, second = asyncio.run(main())
    assert first.check().text
    assert second.check().text == "name" + first.text
    assert first.forks[0].finish_reason == "stop"

    async def waits() -> None:
        await shared.wait("nothing")

    programs = [control.start(model, waits, "the", shared=variables) for _ in range(2)]
    assert [program.result().forks[0].finish_reason for program in programs] == ["deadlock"] * 2


def test_fifty_forks_append_and_none_is_lost() -> None:
    async def script() -> None:
        index = await fork(50)
        shared.append("all", [index])
        while True:
            version = shared.version("sum")
            if not version:
                shared.set("sum", index)
                break
            if shared.cas("sum", version, shared.get("sum") + index).is_written:
                break

    result = control.run(random_model(), script, "the").check()
    assert list(range(50)) == result.shared["all"]
    assert sum(range(50)) == result.shared["sum"]


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        ({"choice": ["yes", "no"]}, {"yes", "no"}),
        ({"choice": ["ab", "abc"]}, {"ab", "abc"}),
        ({"regex": "(red|green){1}"}, {"red", "green"}),
        ({"json": {"enum": [12, True]}}, {"12", "12.0", "true"}),
        ({"grammar": 'start: "is" | "it"'}, {"is", "it"}),
        ({"substring_of": "ab", "temperature": 1.0}, {"", "a", "b", "ab"}),
    ],
)
def test_what_is_generated_is_of_the_language(request_: dict[str, object], wanted: set[str]) -> None:
    model = random_model()

    async def script() -> None:
        await gen(name="x", **request_)  # type: ignore[arg-type]

    sampler = samplers.multinomial(temperature=30.0)
    programs = [control.start(model, script, "the", sampler=sampler, rng=seed) for seed in range(40)]
    found = {program.result().check().captures["x"] for program in programs}
    assert wanted == found


def test_a_quotation_occurs_in_its_source_and_ends_with_its_mark() -> None:
    model = random_model()
    source = 'The 🙂 said "é no" to the red one.'

    async def script() -> None:
        await fixed('"')
        quote = await gen(substring_of=source)
        assert quote in source
        assert '"' not in quote
        await fixed(" end")

    for seed in range(examples(8)):
        result = control.run(model, script, "the", sampler=samplers.multinomial(temperature=5.0), rng=seed).check()
        assert result.text.endswith('" end')


def test_a_constrained_text_that_is_cut_is_an_error_in_the_script() -> None:
    model = random_model()

    async def script() -> None:
        with pytest.raises(IncompleteOutput, match="cut it to"):
            await gen(regex="[a-z]{9}", max_tokens=1)
        await fixed("!")
        assert len(await gen(max_tokens=2)) >= 1

    result = control.run(model, script, "the").check()
    assert "!" in result.text


def test_what_means_nothing_and_a_label_in_text_that_was_cut_are_refused() -> None:
    async def script() -> None:
        with pytest.raises(OptionError, match="expected a text"):
            await fixed(3)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="1 or more, as `count`"):
            await fork(0)
        place = label()
        await fixed("abc")
        inner = label()
        await fixed("d", following=place)
        with pytest.raises(ScriptError, match="text before it was cut"):
            text_since(inner)
        with pytest.raises(ScriptError, match="text before it was cut"):
            await fixed("e", following=inner)

    assert control.run(random_model(), script, "the").check().text == "d"


def test_stop_ends_a_fork_and_runs_its_finally_blocks() -> None:
    async def script() -> None:
        try:
            if await fork(2):
                stop()
            await fixed("a")
        finally:
            shared.append("ended", "x")

    result = control.run(random_model(), script, "the").check()
    assert result.texts == ["a", ""]
    assert result.shared["ended"] == "xx"


def test_a_generator_goes_on_from_a_program_and_a_program_from_a_generator() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    text = continuous(generate.text(model))

    async def script() -> None:
        await gen(max_tokens=3)
        await fixed(" and ")

    with model.meter() as meter:
        state = text("the name", max_tokens=3)
        state = control.run(model, script, state).check().state
        state = text(state, max_tokens=3)
    whole = text("the name", max_tokens=6) + " and "
    whole = text(whole, max_tokens=3)
    assert [row.token_ids for row in whole.rows[0]] == [row.token_ids for row in state.rows[0]]
    assert meter.recomputed_tokens == 0
    del state, whole
    gc.collect()
    assert model.kv_store.nbytes == 0


def test_a_script_that_ends_before_its_end_runs_its_finally_blocks() -> None:
    model = random_model()
    variables = control.Shared()
    done = threading.Event()

    async def script() -> None:
        try:
            while True:
                await gen(max_tokens=1)
        finally:
            shared.append("ended", "x")
            done.set()

    (ended,) = control.run(model, script, "the", budget=control.Budget(tokens=3), shared=variables, check=False).forks
    assert ended.finish_reason == "tokens"
    assert done.wait(5)
    done.clear()
    program = control.start(model, script, "the", shared=variables)
    next(program.events()).fork  # dropped, so the program is cancelled
    assert done.wait(5)
    assert program.is_over
    assert variables.get("ended") == "xx"


@pytest.mark.timeout(60)
def test_an_error_in_a_policy_of_a_piece_is_raised_where_the_script_waits_for_it() -> None:
    def plan(state: int, row: object) -> list[control.Branch]:
        if state == 2:
            raise RuntimeError("poison")
        return [control.Branch(sample_mask=control.TokenSet.all)]

    caught: list[str] = []

    async def script() -> None:
        try:
            await gen(max_tokens=5, policies=[Planned(plan)])
        except RuntimeError as error:
            caught.append(str(error))
        await fixed("!")

    result = control.run(random_model(), script, "the name").check()
    assert result.text.endswith("!")
    assert caught


@pytest.mark.parametrize("sampler", [samplers.greedy(), samplers.multinomial(temperature=1.5)])
@pytest.mark.parametrize("draft", ["lookup", "right", "wrong"])
def test_a_draft_of_a_piece_changes_no_text(sampler: samplers.Sampler, draft: str) -> None:
    """Pieces, forks and cuts between them write what they write without a draft, and right guesses save forwards."""
    model = random_model()
    written: list[list[int]] = []

    class Oracle:
        """Guesses what was written before, or something else."""

        def propose(self, token_ids: list[int]) -> list[int]:
            known = next((ids for ids in written if ids[: len(token_ids)] == list(token_ids)), list(token_ids))
            return [(i + (draft == "wrong")) % 200 + 3 if draft == "wrong" else i for i in known[len(token_ids) :][:4]]

    def script(guess: object) -> control.Script:
        async def run() -> None:
            start = label()
            await gen(regex="[ab]{3}c{2}[ab]{4}", draft=guess, name="first")
            await fixed(" and ")
            await gen(max_tokens=6, stop_at="q", draft=guess)
            which = await fork(2)
            await fixed(f"{which}:", following=start if which else None)
            await gen(choice=["abcabc", "abcab", "xyz"], draft=guess, temperature=0.7)
            await gen(max_tokens=5)

        return run

    with model.meter() as plain_meter:
        plain = control.run(model, script(None), "abcab ", sampler=sampler, rng=3)
    written += [list(fork.state.rows[0][0].token_ids) for fork in plain.forks if fork.state is not None]
    with model.meter() as meter:
        guessed = control.run(model, script("lookup" if draft == "lookup" else Oracle()), "abcab ", sampler=sampler, rng=3)
    assert plain.texts == guessed.texts
    assert written == [list(fork.state.rows[0][0].token_ids) for fork in guessed.forks if fork.state is not None]
    assert plain.captures == guessed.captures
    assert (meter.proposed_tokens > 0, plain_meter.proposed_tokens) == (True, 0)
    if draft == "right":
        assert meter.accepted_tokens > 5
        assert meter.forwards < plain_meter.forwards


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("heal", "following=label"),
        ("guidance", "no second sequence"),
        ("stop_token_ids", "a list of token ids"),
        ("sampler", r"control.run\(..., sampler=...\)"),
        ("max_token", "Did you mean 'max_tokens'"),
        ("draft", "expected 'lookup', a model"),
    ],
)
def test_what_a_piece_does_not_take_is_refused_with_what_to_write(option: str, advice: str) -> None:
    async def script() -> None:
        await gen(**{option: 5})  # type: ignore[arg-type]

    with pytest.raises(OptionError, match=advice) as refused:
        control.run(random_model(), script, "a")
    assert option == refused.value.option


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 4), ({"min_tokens": 6}, 6), ({"stop_token_ids": (102,)}, 2), ({"min_tokens": 1, "stop_token_ids": [102]}, 2)],
)
def test_ends_of_a_piece_are_those_of_a_call(options: dict[str, Any], count: int) -> None:
    model = scripted_model(saying("abca"))  # 'c' is 102
    expected = continuous(generate.text(model))(">", max_tokens=9, **options)

    async def script() -> None:
        await gen(max_tokens=9, name="found", **options)

    result = control.run(model, script, ">")
    assert result.captures["found"] == str(expected).removeprefix(">")
    assert result.state == expected
    assert expected.shape[2] == 2 + count  # the prompt is a start token and '>'


def test_a_stop_token_that_the_model_does_not_have_is_an_error_of_gen() -> None:
    async def script() -> None:
        await gen(stop_token_ids=[10**6])

    with pytest.raises(OptionError, match="expected ids from 0 to .* as `stop_token_ids`"):
        control.run(random_model(), script, "the")


_CHOICES = (["ab", "b"], ["yes", "no", "y"])
_STEPS = st.lists(st.one_of(st.text("ab >", min_size=1, max_size=4), st.sampled_from(range(2))), min_size=1, max_size=5)


@given(steps=_STEPS, seed=st.integers(0, 9))
@settings(max_examples=examples(12), deadline=None)
def test_the_score_of_a_script_is_that_of_the_same_chain(steps: list[str | int], seed: int) -> None:
    """So scores compare what the forks of a script have generated, and not the texts that it has put between."""
    model, sampler = random_model(), samplers.multinomial(temperature=2.0)

    async def script() -> None:
        for step in steps:
            if isinstance(step, str):
                await fixed(step)
            else:
                await gen(choice=_CHOICES[step])

    start = chained = continuous(generate.text(model, sampler=sampler))(">", max_tokens=1, rng=seed)
    result = control.run(model, script, start, sampler=sampler).check()
    for step in steps:
        if isinstance(step, str):
            chained = chained.append(step)
        else:
            chained = continuous(generate.choice(model, _CHOICES[step], sampler=sampler))(chained)
    assert result.state == chained
    torch.testing.assert_close(result.state.scores, chained.scores)
    torch.testing.assert_close(result.state.logprobs.nan_to_num(1.0), chained.logprobs.nan_to_num(1.0))
