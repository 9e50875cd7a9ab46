"""`continuous`: wraps a generator so that a call returns a `SequenceState` (tokens and KV cache; that of a `stream` is its `state`), which
the next generator continues; tokens that are cached there are not fed again. `resume` continues a span that a limit has cut, under its
constraint; a given state stays valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Unpack

from outlines_cont.checks import checked_bool
from outlines_cont.errors import OptionError
from outlines_cont.events.event import StreamOptions
from outlines_cont.generate import ADDED, Generator
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options, PieceOptions
from outlines_cont.generation.prompt import Prompt
from outlines_cont.generation.stream import StateStream
from outlines_cont.immutable import Immutable
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState

__all__ = ["Continuation", "continuous"]


@dataclass(frozen=True, slots=True)
class Continuation(Immutable):
    """A generator as a function from a prompt or a state to a state."""

    _no_prompt: ClassVar[str] = Generator._no_prompt
    _advice: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("value", "values", "state", "text", "generated", "tokens", "errors"),
            "Call it first: `continuous(generator)(prompt)` returns a state, which has it.",
        ),
        "probabilities": "It is a method of the generator: `generator.probabilities(prompt)`.",
        "generate": "Call it: `continuous(generator)(prompt)`.",
    }

    generator: Generator

    def __call__(self, prompt: Prompt, *, rng: Rng = None, **options: Unpack[PieceOptions]) -> SequenceState:
        """Generate one span per row after the prompt, and return the state.

        No token is fed twice: the model is run on the pending tokens of the state only. A given state stays valid.

        Args:
            prompt: as for a call of the generator; the items of a list are the batch entries of the new state.
            rng, **options: as for a call of the generator.

        Raises:
            OptionError, PromptTypeError, EmptyPrompt, ContextLengthError, SampleMismatch, ModelMismatch: before anything
                runs. A single row that fails has its error in `errors` of the state, and later generators do not change it;
                the others continue.
        """
        return Call(self.generator, prompt, Options.of(options), rng=rng).finished_state()

    async def acall(self, prompt: Prompt, *, rng: Rng = None, **options: Unpack[PieceOptions]) -> SequenceState:
        """The asynchronous form: it does not block the event loop, and a cancelled task releases its rows. Tasks share the engine."""
        return await Call(self.generator, prompt, Options.of(options), rng=rng).async_finished_state()

    def stream(
        self,
        prompt: Prompt,
        *,
        resume: bool = False,
        top: int = 0,
        retract: bool = False,
        partial: bool = False,
        rng: Rng = None,
        **options: Unpack[PieceOptions],
    ) -> StateStream:
        """Generate as a call does, and yield events with the new part of each row after each step.

            stream = continuous(generator).stream(prompt)
            for event in stream:
                print(event.text, end="")
                if seen_enough(event):
                    break
            state = stream.state  # continue it with another generator; no token is fed twice

        Args:
            prompt: as for a call.
            resume: `prompt` is a state whose spans were cut, such as that of a stream that was left: they go on as in `resume`. The first
                events have what the spans have already, so that the texts, joined, are those of the whole spans.
            top, retract, partial: as in `Generator.stream`; see `StreamEvent`.
            rng, **options: as for a call.

        Returns:
            A stream to iterate over, also with `async for`; its `state` is the present state at any time, also in the middle of a span.

        Raises:
            As a call does, or as `resume`; a single row that fails has its error in its last event.
        """
        shown = StreamOptions(True, top, retract, partial)
        resumes = checked_bool(resume, "resume")
        if resumes and rng is not None:
            raise OptionError(
                f"expected no `rng` together with `resume`, got {rng!r}: the state continues its own stream of random numbers.",
                "rng",
            )
        checked = Options.of(options, resumes=resumes)
        return StateStream(Call(self.generator, prompt, checked, rng=rng, resume=resumes), shown)

    astream = stream  # the same stream, by the name that generators have for `async for`

    def resume(self, state: SequenceState, **options: Unpack[PieceOptions]) -> SequenceState:
        """Continue the generated spans of `state` that were cut, constraint included, as if they had not been cut.

        Rows that have finished or failed stay as they are. `stream(state, resume=True)` does it step by step.

        Args:
            state: a state that this generator has made.
            **options: those of `PieceOptions`. `max_tokens` is the most tokens to add now. The other options are those with which the
                span began, such as its `stop_at` and `policies`, which the state keeps; one that is given replaces its own, so that
                `policies=[]` lets them go.

        Raises:
            ResumeError: the last tokens were not generated, or not by this generator; or the state was loaded, and its file could not
                hold an option of the span, such as a policy of your own, which is not given now.
        """
        return Call(self.generator, state, Options.of(options, resumes=True), resume=True).finished_state()

    async def aresume(self, state: SequenceState, **options: Unpack[PieceOptions]) -> SequenceState:
        """The asynchronous form of `resume`; see `acall`."""
        return await Call(self.generator, state, Options.of(options, resumes=True), resume=True).async_finished_state()

    if not TYPE_CHECKING:  # type checkers find the mistake by themselves

        def __radd__(self, state: object) -> object:
            """Raise `TypeError`: a state is continued by a call."""
            raise TypeError(ADDED)


def continuous(generator: Generator) -> Continuation:
    """Return `generator` as a function from a prompt or a state to a `SequenceState`.

    Raises:
        TypeError: `generator` is not a generator.
    """
    if not isinstance(generator, Generator):
        advice = "Pass what a function of `generate` returns, not the model or the function itself."
        if isinstance(generator, Continuation):
            advice = "It is what `continuous` returns: call it with a prompt or a state."
        raise TypeError(
            f"expected a generator, such as `generate.text(model)`, got {type(generator).__name__}. {advice}"
        )
    return Continuation(generator)
