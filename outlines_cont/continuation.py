"""`continuous`: wraps a generator so that a call returns a `SequenceState` (tokens and KV cache), which the next generator continues,
without feeding a token twice. `resume` continues a span that a limit has cut, under its constraint; the given state stays valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from outlines_cont.events.stream_options import StreamOptions, check_streamed
from outlines_cont.generate import Generator
from outlines_cont.generation.options import Options, PieceOptions
from outlines_cont.generation.prompt import Prompt
from outlines_cont.generation.run import Run
from outlines_cont.generation.state_stream import StateStream
from outlines_cont.immutable import Immutable
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState


@dataclass(frozen=True, slots=True)
class Continuation(Immutable):
    """A generator as a function from a prompt or a state to a state."""

    generator: Generator

    def __call__(self, prompt: Prompt, *, rng: Rng = None, **options: Unpack[PieceOptions]) -> SequenceState:
        """Generate one span per row after the prompt, and return the state.

        No token is fed twice: only what the state has not fed yet goes into the model. A given state stays valid.

        Args:
            prompt: a text, a state, or a list of either; states in a list become the batch entries of one state.
            rng: a seed, a `torch.Generator` to draw the seed from, or a list with a seed per batch entry. None continues the
                streams of a state, and takes a seed from the operating system for a prompt.
            **options: `max_tokens`, `stop_at` and the others of `PieceOptions`.

        Raises:
            OptionError, PromptTypeError, EmptyPrompt, ContextLengthError, SampleMismatch, ModelMismatch: before anything
                runs. A row that fails alone has its error in `errors` of the state, and is left as it is by later
                generators; the others go on.
        """
        return self._run_to_end(Run(self.generator, prompt, Options.of(options), rng=rng))

    async def acall(self, prompt: Prompt, *, rng: Rng = None, **options: Unpack[PieceOptions]) -> SequenceState:
        """The asynchronous form: it does not block the event loop, and a cancelled task releases its rows. Tasks share the engine."""
        run = Run(self.generator, prompt, Options.of(options), rng=rng)
        async for _ in run.async_steps():
            pass
        return run.state()

    def stream(
        self,
        prompt: Prompt,
        *,
        top: int = 0,
        retract: bool = False,
        partial: bool = False,
        rng: Rng = None,
        **options: Unpack[PieceOptions],
    ) -> StateStream:
        """Generate as a call does, and yield events with what is new in each row after each step.

            stream = continuous(generator).stream(prompt)
            for event in stream:
                print(event.text, end="")
                if seen_enough(event):
                    break
            state = stream.state  # go on with another generator; nothing is fed twice

        Args:
            prompt: as for a call.
            top: for each drawn token, report this number of the most probable ones, with their log-probabilities.
            retract: report text at once, though a stop text or a policy may still remove it; a later event then says how much.
            partial: for a generator of JSON, report the value so far; see `StreamEvent.value`.
            rng: as for a call.
            **options: as for a call.

        Returns:
            A stream to iterate over, also with `async for`; its `state` is the state at every moment, also in the middle of a span.

        Raises:
            As a call does; a row that fails alone has its error in its last event.
        """
        check_streamed(self.generator.sampler)
        shown = StreamOptions(True, top, retract, partial)
        return StateStream(Run(self.generator, prompt, Options.of(options), rng=rng), shown)

    astream = stream  # the same stream, by the name that generators have for `async for`

    def resume(self, state: SequenceState, **options: Unpack[PieceOptions]) -> SequenceState:
        """Continue the generated spans of `state` that were cut, constraint included, as if they had not been cut.

        Rows that have finished or failed stay as they are.

        Args:
            state: a state that this generator has made.
            **options: those of `PieceOptions`. `max_tokens` is the most tokens to add now; the others, such as `stop_at` and
                `policies`, are those of the piece: they are not kept in the state, so give them again.

        Raises:
            ResumeError: nothing was generated last, or not by this generator.
        """
        return self._run_to_end(Run(self.generator, state, Options.of(options), resume=True))

    def _run_to_end(self, run: Run) -> SequenceState:
        for _ in run.steps():
            pass
        return run.state()


def continuous(generator: Generator) -> Continuation:
    """Return `generator` as a function from a prompt or a state to a `SequenceState`.

    Raises:
        TypeError: `generator` is not a generator.
    """
    if not isinstance(generator, Generator):
        raise TypeError(
            f"expected a generator, such as `generate.text(model)`, got {type(generator).__name__}. "
            "Pass what a function of `generate` returns, not the model or the function itself."
        )
    return Continuation(generator)
