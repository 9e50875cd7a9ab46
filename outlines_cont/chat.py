"""`Chat`: a conversation with a chat model as an immutable value: messages, and a state (tokens, KV cache) that is kept as far as the chat
template still writes the same text, so that a reply keeps the tokens that were generated. A reply is text, free or constrained, or tool
calls; replies can be batched, streamed, forked, resumed and saved (without the template).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial as partial_call
from itertools import takewhile
from operator import eq
from typing import IO, Any, ClassVar, Self, TypeVar, Unpack

from pydantic import ValidationError

from fsm import FSMError
from outlines_cont import generate
from outlines_cont.chats.call_ids import CallIds
from outlines_cont.chats.chat_format import ChatFormat, aligned
from outlines_cont.chats.content_parts import read_content, result_content
from outlines_cont.chats.image_parts import (
    as_loaded,
    as_saved,
    expanded,
    images_in,
    images_of,
    located,
    with_same_images,
)
from outlines_cont.chats.message import Turn, called_ids, checked_message, read_turns, readable, turns_json, with_schema
from outlines_cont.chats.template import check_role
from outlines_cont.chats.tool import Tool, ToolCall
from outlines_cont.chats.tool_form import ToolForm
from outlines_cont.checks import check, check_int, check_model, check_one_of, checked_bool, is_int
from outlines_cont.errors import ChatError, ModelMismatch, OptionError, StateFileError
from outlines_cont.events.event import StreamOptions
from outlines_cont.generate import Generator
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options, PieceOptions
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.generation.thinking import Thinking, closing_ids, head_of
from outlines_cont.immutable import Immutable, shallow_copy
from outlines_cont.interfaces import LanguageModel
from outlines_cont.replies import ChatStream, OpenCalls, ReplyConstraint, ReplyMaker, reply_maker
from outlines_cont.samplers import gives_one_text
from outlines_cont.sampling.random_stream import RandomStream, Rng
from outlines_cont.state.file import load_chat, plain, save_state
from outlines_cont.state.image_span import Images
from outlines_cont.state.row import StateRow, WrittenPiece
from outlines_cont.state.row import written as row_bytes
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.tokens import Tokens, prompt_row

ChatT = TypeVar("ChatT", bound="Chat")


class Chat(Immutable):
    """A conversation: messages, and what the model has computed for them. It never changes; every method returns another.

        chat = Chat(model).system("You take orders.").user("Two lamps, please.")
        chat = chat.assistant(generate.json(model, Order), max_tokens=200)
        chat.value, chat.messages, chat.state
        chat = chat.user("Make it three.").assistant(generate.json(model, Order), max_tokens=200)  # feeds only new tokens

    The token ids are those of the chat template for the whole conversation, except that every reply keeps the tokens that were generated.
    The common prefix with the earlier conversation keeps its keys and values. If a template rewrites earlier messages, for example omits
    the thoughts of earlier replies, the tokens from there on are fed again.
    """

    _no_prompt: ClassVar[str] = (
        "A conversation is continued by its methods, such as `chat.user(text).assistant(generator)`; `chat.state` is a prompt."
    )
    _advice: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("text", "content", "reply", "response", "answer", "output"),
            "Write `chat.value` for the value of the last reply, or `chat.messages[-1]` for its message.",
        ),
        **dict.fromkeys(
            ("send", "ask", "say", "generate", "complete", "run"),
            "Write `chat.user(text).assistant(generator)`, which returns the continued conversation.",
        ),
        "history": "Write `chat.messages`.",
    }

    def __init__(
        self,
        model: LanguageModel,
        *,
        template: str | None = None,
        tools: Sequence[Any] = (),
        tool_form: ToolForm | str | None = None,
        rng: Rng = None,
        template_variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Begin a conversation.

        Args:
            model: a chat model.
            template: a Jinja template to use instead of that of the model's tokenizer.
            tools: the tools that the model may call: functions with type hints, pydantic models, or tools of OpenAI, Anthropic or MCP
                as dicts.
            tool_form: how the model writes calls: a `ToolForm`, or the name of one of `FORMS`, such as 'hermes'; None infers it from the
                template.
            rng: the seed of the random stream; None takes one from the operating system.
            template_variables: variables of the template, such as `{"enable_thinking": False}`: for names that come from elsewhere, as no
                other parameter can be among them.
            **options: the same, as keywords: `enable_thinking=False`.

        Raises:
            NoChatTemplate: the tokenizer has none, and none was given.
            OptionError: the template reads no such variable, or its name is reserved, such as `messages` and `bos_token`.
        """
        check_model(model)
        variables = {} if template_variables is None else template_variables
        is_dict = isinstance(variables, Mapping) and all(isinstance(name, str) for name in variables)
        check("template_variables", variables, is_dict, "a dict of variables of the template by their names")
        self._format = ChatFormat.of(model, template, tool_form, {**variables, **options}).with_tools(tools)
        self._rng = rng
        self._turns: tuple[Turn, ...] = ()
        # The last state that was computed, for these messages or others.
        self._base: SequenceState | None = None
        # The state of these messages, if it is known.
        self._state: SequenceState | None = None

    @property
    def model(self) -> LanguageModel:
        """The model that replies."""
        return self._format.template.model

    @property
    def template(self) -> str | None:
        """The Jinja template; None for a tokenizer of mistral-common."""
        return self._format.template.source

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages as dicts with `role` and `content`; a copy."""
        return [deepcopy(dict(turn.message)) for turn in self._turns]

    @property
    def value(self) -> Any:
        """The value of the last reply; None if it was cut, or not written by a generator."""
        return next((turn.value for turn in reversed(self._turns) if turn.is_reply), None)

    @property
    def thoughts(self) -> str:
        """What the model has thought before the last reply, without white space around it; see `Thinking`."""
        return next((turn.thoughts for turn in reversed(self._turns) if turn.is_reply), "")

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last reply that have no result yet; of a reply that was cut (`finish_reason` is `length`) the complete ones."""
        messages = [turn.message for turn in reversed(self._turns)]
        answered, last = next(((i, found) for i, found in enumerate(messages) if found["role"] != "tool"), (0, {}))
        return tuple(self._format.call(call) for call in (last.get("tool_calls") or ())[answered:])

    @property
    def state(self) -> SequenceState:
        """The sequence: up to the beginning of the next reply, or, if the last message is a reply, up to its end. No token is fed.

        Raises:
            ChatError: there is no message, or the template rejects them.
            ContextLengthError: the conversation is too long.
        """
        if self._state is None:
            self._state = self._compute_state()
        return self._state

    @property
    def finish_reason(self) -> str:
        """Why the last reply has ended: `stop`, `constraint` or `length` (cut); empty if the last message is not a reply."""
        return self.state.finish_reasons[0][0] if self._is_reply else ""

    def system(self, content: Any) -> Self:
        """Return the conversation with a system message: instructions for the model."""
        return self.message({"role": "system", "content": content})

    def user(self, content: Any) -> Self:
        """Return the conversation with a message of the user. Special tokens and markup in it are encoded as plain text.

        The content is a text, or a list of texts and images: `chat.user(["What is broken here?", scan])`. For what is an image see
        `model.see`. Images are fed with the next reply.
        """
        return self.message({"role": "user", "content": content})

    def message(self, message: Mapping[str, Any]) -> Self:
        """Return the conversation with any message, such as one with another role, or with more keys that the template reads.

        Raises:
            ChatError: it has no `role` or an unknown one, or its content is neither a text nor a list of parts.
        """
        return self.add([message])

    def add(self, messages: Iterable[Mapping[str, Any]]) -> Self:
        """Return the conversation with several messages, each as of `message`. Cost: linear, where a call for each is quadratic.

        Raises:
            ChatError: as `message`, for the first that is wrong.
        """
        return self._copy_with(turns=(*self._turns, *map(self._turn_of, messages)))

    def _turn_of(self, message: Mapping[str, Any]) -> Turn:
        """Return a message as a turn; raise `ChatError` for one that is wrong."""
        if isinstance(message, Mapping) and isinstance(message.get("content"), Tokens):
            raise ChatError(
                "expected a text as the content of a message, got `Tokens`: messages are encoded as plain text. Control tokens are written "
                "by the template: `Chat(model, template=...)`. Without `Chat`, append them to a state: "
                "`continuous(generator)(chat.state + Tokens.of(text, special=True))`."
            )
        message = read_content(message, self.model)
        checked = checked_message(message)
        check_role(checked["role"], self.template)
        content = message.get("content")
        text = content if isinstance(content, str) and set(message) <= {"role", "content"} else None
        return Turn(checked, text)

    def tool(self, result: Any) -> Self:
        """Return the conversation with the result of the first call without a result.

        Args:
            result: a text; an image, a list of texts and images, or a list of parts such as tools of MCP return (see `user`); any other
                value is written as JSON: what JSON can hold, models of pydantic, dataclasses, dates and the like.

        Raises:
            ChatError: every call has a result, or JSON cannot hold this one.
            ImageError: an image cannot be read.
            UnsupportedModel: the model takes no images.
        """
        if not self.tool_calls:
            raise ChatError("expected a reply with a call that has no result yet, got none: see `chat.tool_calls`")
        call = self.tool_calls[0]
        head = {"role": "tool", "name": call.name, "tool_call_id": call.id}
        return self.message({**head, "content": result_content(result)})

    def assistant(
        self,
        reply: Generator | str | None = None,
        *,
        rng: Rng = None,
        **options: Unpack[ReplyOptions],
    ) -> Self:
        """Return the conversation with a reply.

        If there are tools, a reply of free text is text or calls: see `tool_calls`; a generator with a constraint calls only if `tools=`
        is given. After a reply the same message is continued: `chat.assistant("Sure: ").assistant(generator)` sets the beginning of the
        reply. A reply that was cut is continued by `resume`.

        Args:
            reply: the generator of the reply, such as `generate.text(model)`; or a text, as an example. None is free text, and
                calls if the conversation has tools.
            rng: a seed; None continues the random stream of the conversation.
            **options: `tools`, `tool_choice`, `max_calls` and those of a call of a generator; see `ReplyOptions`.

        Raises:
            ChatError: there is no message to reply to, or the template rejects them.
            OptionError: `reply` is neither, or draws several samples.
            Exception: the error of the row. A reply that was cut is not an error; its `value` may be None.
        """
        if isinstance(reply, str):
            if not self._is_reply or self._turns[-1].message.get("tool_calls"):
                return self.message({"role": "assistant", "content": reply})
            added = self.model.tokenizer.encode_inside(reply, self.state.rows[0][0].token_ids) if reply else []
            return self._with_extended_reply(reply, None, self.state + added if reply else self.state)
        (chat,) = self.replies([self], reply, rng=rng, **options)
        return chat

    def resume(
        self,
        generator: Generator,
        **options: Unpack[ReplyOptions],
    ) -> Self:
        """Return the conversation with more of a reply that was cut, constraint included, as if it had not been cut.

        Args:
            generator: the one that has begun the reply.
            **options: as in `continuous(generator).resume`: `max_tokens` is the most tokens to add now; the others, `tool_choice` and
                `max_calls` among them, are those of the reply, but for those that are given.

        Raises:
            ChatError: the last message is not a reply that was cut, or it contains calls.
            ResumeError: another generator has written it.
        """
        if self.finish_reason != "length":
            raise ChatError(
                "expected a conversation whose last reply was cut (`chat.finish_reason` is 'length'), got one that ends with "
                f"{self._turns[-1].message['role'] if self._turns else 'no message'!r} and {self.finish_reason!r}. For a new reply write "
                "`chat.assistant(generator)`."
            )
        _check(self, generator)
        state = self.state
        (chat,), maker, checked = _begin([self], generator, options, resumes=True)
        piece = state.rows[0][0].piece
        if chat._format.tools and (piece is None or piece.source != maker.source):
            maker = _reply_maker(chat, generator, _ToolChoice.of(options), begins=chat._is_one_piece)
        if options.get("tools") is not None:
            chat = chat._copy_with(state=state)
        return chat._replied(maker, Call(maker, state, checked, resume=True).finished_state())

    @classmethod
    def replies(
        cls,
        chats: Sequence[Self],
        generator: Generator | None = None,
        *,
        rng: Rng = None,
        **options: Unpack[ReplyOptions],
    ) -> list[Self]:
        """Return each conversation with a reply; all run in one batch.

        Args:
            chats: conversations with one model.
            generator: as in `assistant`.
            rng: a seed, or a list with one per conversation.
            **options: as in `assistant`.

        Raises:
            OutlinesContError: as in `assistant`; the first error of a row is raised when all have ended.
        """
        if not chats:
            return []
        chats, maker, checked = _begin(chats, generator, options)
        messages = [chat._format.tool_messages for chat in chats]
        if isinstance(maker, ReplyMaker) and any(one != messages[0] for one in messages):
            raise OptionError(
                "expected conversations with the same tools. Give them to the call: `tools=[...]`.", "tools"
            )
        call = Call(maker, [chat.state for chat in chats], checked, rng=rng)
        done = call.finished_state().best()
        entries = zip(chats, done.rows, done.seeds, strict=True)
        return [chat._replied(maker, SequenceState(done.model, (group,), seed)) for chat, group, seed in entries]

    def stream(
        self,
        generator: Generator | None = None,
        *,
        top: int = 0,
        retract: bool = False,
        partial: bool = False,
        rng: Rng = None,
        **options: Unpack[ReplyOptions],
    ) -> ChatStream[Self]:
        """Generate a reply, and yield events with its new text after each step.

            stream = chat.stream(generate.text(model), max_tokens=200)
            for event in stream:
                print(event.text, end="")
            chat = stream.chat

        A tool call is reported as soon as its name is complete: `event.call` has the new text of its arguments, as JSON, and the partial
        arguments. Its text is not part of `event.text`.

        Args:
            generator: as in `assistant`.
            top: in events, this number of the most probable tokens for each drawn one.
            retract: report text immediately, though a stop text may still remove it; not in a reply that may call.
            partial: add the partial value of a generator of JSON to the events.
            rng: as in `assistant`.
            **options: as in `assistant`.

        Returns:
            A stream to iterate over, also with `async for`; its `chat` is the conversation at any time.

        Raises:
            OutlinesContError: as in `assistant`, for arguments that can be checked immediately.
            OptionError: `retract` in a reply that may call.
        """
        (chat,), maker, checked = _begin([self], generator, options)
        if retract and isinstance(maker, ReplyMaker):
            raise OptionError(
                "expected no `retract` in a reply that may call, whose text is held back where it may begin a call. Omit it.",
                "retract",
            )
        shown = StreamOptions(True, top, retract, partial)
        call = Call(maker, chat.state, checked, rng=rng)
        calls: OpenCalls | None = None
        if isinstance(maker, ReplyMaker):
            assert chat._format.form is not None
            assert isinstance(maker.constraint, ReplyConstraint)
            calls = OpenCalls(chat._format.form, chat._format.tools, chat._ids_in(call), maker.constraint.marker)
        return ChatStream(call, shown, partial_call(chat._replied, maker), calls)

    def fork(self, n: int, *, same: bool = False, feed: bool = True) -> list[Self]:
        """Return `n` conversations with the same messages, each with a random stream of its own, unless `same`.

        They share keys and values. Cost: tokens that were not fed yet are fed, once for all of them; with `feed=False` by the replies, of
        which those that run at the same time share them.
        """
        if checked_bool(feed, "feed"):
            _ = self.state.logits
        many = self.state.fork(n, same=same)
        return [self._copy_with(state=SequenceState(self.model, ((row,),), self.state.seed)) for row in many.rows[0]]

    def back(self, n: int = 1) -> Self:
        """Return the conversation before the last `n` messages of the user; the messages before them are not fed again.

        Raises:
            ChatError: there are fewer messages of the user.
        """
        indices = [index for index, turn in enumerate(self._turns) if turn.message["role"] == "user"]
        if not is_int(n, 1, len(indices)):
            raise ChatError(f"expected a number of messages of the user from 1 to {len(indices)} to go back, got {n!r}")
        return self[: indices[-n]]

    def save(self, path: str | os.PathLike[str] | IO[bytes], *, kv: bool = True) -> None:
        """Write the conversation to one file, atomically: its messages, and its state as `SequenceState.save` does.

        A value that JSON cannot hold, such as a pydantic object, is not saved; the text of the reply is. A template is not saved.

        Raises:
            ChatError: there is no message, or JSON cannot hold one of them.
            StateFileError: the file cannot be written.
        """
        turns = [replace(turn, message=as_saved(turn.message), value=plain(turn.value)) for turn in self._turns]
        text = turns_json(turns, self._format.template.options, self._format.tool_messages)
        save_state(path, self.model, self.state.rows, self.state.seed, kv=checked_bool(kv, "kv"), chat=text)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | IO[bytes],
        model: LanguageModel,
        *,
        template: str | None = None,
        tools: Sequence[Any] = (),
    ) -> Self:
        """Return the conversation that `save` wrote; pass its template and tools again, if they were given to it.

        Of tools that were functions only the descriptions are saved; to call them, pass the functions.

        Raises:
            StateFileError: the file is missing, truncated, altered, or something else. Nothing is loaded.
            StateMismatch: it belongs to another model or tokenizer.
            NoChatTemplate: the tokenizer has no template, and none was given.
        """
        rows, seed, text = load_chat(path, model)
        try:
            turns, options, saved_tools = read_turns(text)
            images = images_in(rows[0][0])
            turns = tuple(replace(turn, message=as_loaded(turn.message, images)) for turn in turns)
            chat = cls(model, template=template, tools=tools or saved_tools, template_variables=options)
        except (ValidationError, ChatError, OptionError, FSMError) as error:
            raise StateFileError(
                f"expected a conversation with this model and template in {path!r}, got something else: {error}"
            ) from error
        return chat._copy_with(turns=turns, state=SequenceState(model, rows, seed))

    def __getitem__(self, key: slice) -> Self:
        """Return the conversation of some of its messages: `chat[:3]` has the first three. The common prefix keeps its keys and values.

        Raises:
            TypeError: the key is not a slice.
        """
        if not isinstance(key, slice):
            raise TypeError(
                f"expected a slice of messages, such as `chat[:3]`, got {key!r}. `chat.messages[{key!r}]` is one message."
            )
        return self if self._turns[key] == self._turns else self._copy_with(turns=self._turns[key])

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._turns)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.messages)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        roles = ", ".join(str(turn.message["role"]) for turn in self._turns)
        cached = f", {int(self._state.cached.sum())} tokens cached" if self._state is not None else ""
        return f"<Chat of {len(self)} messages ({roles}){cached}>" if roles else "<Chat without messages>"

    def __str__(self) -> str:
        """One message a line, with the calls of tools."""
        return "\n".join(readable(turn.message) for turn in self._turns)

    def __eq__(self, other: object) -> bool:
        """Whether model, template and messages are equal; computed states are ignored."""
        if not isinstance(other, Chat):
            return NotImplemented
        messages, others = ([turn.message for turn in chat._turns] for chat in (self, other))
        return self._format.template == other._format.template and messages == others

    def __hash__(self) -> int:
        return hash((id(self.model), self.template, str(self)))

    def _copy_with(self, **changes: Any) -> Self:
        """Return a copy with other turns, another format or a known state. The last computed state is the base of the next one."""
        other = shallow_copy(self)
        other._base = self._state or self._base
        other._state = changes.pop("state", None)
        for name, value in changes.items():
            setattr(other, f"_{name}", value)
        return other

    @property
    def _is_reply(self) -> bool:
        return bool(self._turns) and self._turns[-1].is_reply

    def _call_ids(self, stream: RandomStream) -> CallIds:
        """Return the ids of the calls in the next reply, or in the one that is continued, which draws from a stream."""
        before, _ = self._reply_turns
        taken = frozenset(one for turn in before for one in called_ids(turn.message))
        return CallIds((stream.seed, stream.batch, stream.sample, stream.path, len(before)), taken)

    def _ids_in(self, call: Call) -> Callable[[int], str]:
        """Return the ids of the calls that the one row of a call writes, by their numbers."""

        def of(number: int) -> str:
            row = call.rows[0]
            assert row is not None
            return self._call_ids(row.stream.close()).of(number)

        return of

    def _showing(self, schema: str) -> Self:
        """Return the conversation with the text of a schema in the message of the system, or in the first one of the user."""
        messages = [turn.message for turn in self._turns]
        shown = with_schema(messages, schema, has_system=self._format.template.has_system)
        if shown is messages:
            return self
        added = len(shown) - len(messages)
        turns = (Turn(message) for message in shown[:added])
        changed = zip(self._turns, shown[added:], strict=True)
        kept = (
            turn if turn.message is message else replace(turn, message=message, text=None) for turn, message in changed
        )
        return self._copy_with(turns=(*turns, *kept))

    @property
    def _is_one_piece(self) -> bool:
        """Whether a reply that was cut is one piece, with thoughts before it, and has no text that was given."""
        row = self.state.rows[0][0]
        if row.piece is None or row.piece.is_thinking:
            return True
        data = b"".join(row_bytes(row.token_ids[row.piece.start :], self.model.tokenizer))
        return bool(self._turns[-1].message.get("content") == data.decode(errors="replace"))

    def _behind_head(self) -> Self:
        """Return the conversation with the head of an answer before its next reply; itself, if it has begun, or has none."""
        head = "" if self._is_reply else head_of(self._format.template)
        return self._copy_with(state=self.state + Tokens(head, special=True)) if head else self

    def _behind_thoughts(self) -> Self:
        """Return the conversation with the thoughts closed that its template opens before a reply; itself, if it opens none."""
        ids = [] if self._is_reply else closing_ids(self._format.template, self.state.rows[0][0].token_ids)
        return self._copy_with(state=self.state + ids) if ids else self

    def _compute_state(self) -> SequenceState:
        """Return the state of the messages, with the longest common prefix of the last computed state."""
        known = self._turns[-1].text if self._is_reply else None  # None for calls, too
        before = self._turns[:-1] if known is not None else self._turns
        ids = self._format.token_ids([turn.message for turn in before], known is not None or not self._is_reply)
        if known is not None:
            ids += closing_ids(self._format.template, ids)
            ids += self.model.tokenizer.encode_special(head_of(self._format.template))
        if known:
            ids += self.model.tokenizer.encode_inside(known, ids)
        seen = images_of([turn.message for turn in before])
        ids, images = expanded(ids, seen, self.model)
        if self._base is None:
            opened = open_prompt(self.model, ids, None, self._rng)
            return SequenceState(self.model, ((self._row(ids, images, opened.rows[0][0].stream),),), opened.seed)
        base = self._base.rows[0][0]
        row = aligned(with_same_images(base, images) if base.images else base, ids, self.model.tokenizer)
        if images:
            row = located(row, images, ids) or self._row(ids, images, base.stream)
        return SequenceState(self.model, ((self._base._fitting(row),),), self._base.seed)

    def _row(self, token_ids: Sequence[int], images: Images, stream: RandomStream) -> StateRow:
        """Return the row of a conversation of which nothing is fed."""
        row = prompt_row(token_ids, self.model, stream, 0)  # a BOS was written by the template
        if not images:
            return row
        row = replace(row, images=images)
        return replace(row, prompt_length=len(row.text(self.model.tokenizer)))

    def _replied(self, maker: PieceMaker, state: SequenceState) -> Self:
        """Return the conversation with the reply of a generator at the end of a state, which may be calls."""
        chat = self._with_reply(state)
        if not isinstance(maker, ReplyMaker) or not maker.calls(state.rows[0][0]):
            return chat
        last = chat._turns[-1]
        text = last.text if last.text is not None else last.message["content"]  # of a reply with thoughts
        message = self._format.with_calls(last.message, text, self._call_ids(state.rows[0][0].stream))
        if message is last.message:
            return chat
        return chat._copy_with(turns=(*chat._turns[:-1], Turn(message)), state=state)

    def _with_reply(self, state: SequenceState) -> Self:
        """Return the conversation with the reply at the end of a state."""
        row = state.rows[0][0]
        if row.error is not None:
            raise row.error
        before = self.state.rows[0][0]
        self._cache_prefix(before, row)
        thoughts = None if row.piece is None else row.piece.thoughts
        if thoughts is not None and (
            thoughts.start >= len(before.token_ids) or (before.piece is not None and before.piece.is_thinking)
        ):
            thought = thoughts.data(row.token_ids, self.model.tokenizer).decode(errors="replace")
            written = () if thoughts.is_open or row.piece is None else row.token_ids[row.piece.start :]
            turns, turn = self._reply_turns
            text = b"".join(row_bytes(written, self.model.tokenizer)).decode(errors="replace")
            return self._copy_with(turns=(*turns, turn.thinking(thought, text, row.value)), state=state)
        old, new = (known.text(self.model.tokenizer) for known in (before, row))
        # A character of which the last piece wrote a part was U+FFFD until now.
        same = len(old) if new.startswith(old) else sum(takewhile(bool, map(eq, old, new)))
        text = new[same:] if self._is_reply else new[same:].removeprefix(head_of(self._format.template))
        return self._with_extended_reply(text, row.value, state, len(old) - same)

    def _cache_prefix(self, before: StateRow, after: StateRow) -> None:
        """Keep the keys and values of the tokens before a reply, so that another reply to them feeds only the last token again."""
        length = len(before.token_ids) - 1
        is_new = before.logits is None and before.cached < length
        is_kept = after.cached >= length and after.token_ids[:length] == before.token_ids[:length]
        if is_new and is_kept and after.kv is not None:
            self._state = replace(self.state, rows=((replace(before, kv=after.kv[:length]),),))

    def _with_extended_reply(self, text: str, value: Any, state: SequenceState, cut: int = 0) -> Self:
        """Return the conversation with `text` at the end of its reply, in place of its last `cut` characters."""
        before, turn = self._reply_turns
        return self._copy_with(turns=(*before, turn.extended(text, value, cut)), state=state)

    @property
    def _reply_turns(self) -> tuple[tuple[Turn, ...], Turn]:
        """The messages before a reply, and the reply so far, which may be empty."""
        turns = self._turns if self._is_reply else (*self._turns, Turn({"role": "assistant", "content": ""}, ""))
        return turns[:-1], turns[-1]


def answering(chat: Chat) -> SequenceState:
    """Return the state in which a reply without thoughts begins."""
    return chat._behind_thoughts().state


def with_ends(options: Options, chats: Sequence[Chat]) -> Options:
    """Return the options of a call with what a template decides: the tokens that it writes after a reply are further `stop_token_ids`,
    and its marks are those of thoughts.
    """
    thinking = options.thinking
    if isinstance(thinking, Thinking):
        thinking = thinking.with_marks(chats[0]._format.template)
    ends = {end for chat in chats for end in chat._format.template.end_token_ids}
    return replace(options, thinking=thinking, stop_token_ids=(*options.stop_token_ids, *sorted(ends)))


class ReplyOptions(PieceOptions, total=False):
    """The options of a reply, all of them optional; the others are those of a call of a generator.

    Attributes:
        tools: the tools that may be called from now on, as in `Chat(model, tools=...)`; None leaves them unchanged.
        tool_choice: `"auto"`, text or calls; `"none"`, text; `"required"`, calls; the name of the tool that is called, once; or a list
            of names, of which one is called, and `"auto"` among them for text or calls.
        max_calls: the most calls of the reply; None for as many as the form of the model allows. The default is 1 where `tool_choice`
            is a name, else None.
    """

    tools: Sequence[Any] | None
    tool_choice: str | Sequence[str]
    max_calls: int | None


@dataclass(frozen=True, slots=True)
class _ToolChoice:
    """Whether a reply calls: `auto`, `none`, `required`, the name of a tool, or a list of names; and the most calls."""

    choice: str | Sequence[str] = "auto"
    max_calls: int | None = None

    @classmethod
    def of(cls, options: ReplyOptions) -> Self:
        """Return the choice among the options of a reply; of a tool by its name one call."""
        choice = options.get("tool_choice", "auto")
        is_name = isinstance(choice, str) and choice not in ("auto", "none", "required")
        return cls(choice, options.get("max_calls", 1 if is_name else None))

    def tools_of(self, chat: Chat) -> tuple[Tool, ...]:
        """Return the tools of a conversation that may be called; raise `OptionError` for a choice that it does not have."""
        check_int("max_calls", self.max_calls, 1, is_optional=True)
        tools = chat._format.tools
        names = [tool.name for tool in tools]
        if isinstance(self.choice, list | tuple):
            for name in self.choice:
                check_one_of("tool_choice", name, ["auto", *names])
            named = tuple(tool for tool in tools if tool.name in self.choice)
            check("tool_choice", self.choice, bool(named), f"a list of {', '.join(map(repr, names))}")
            return named
        check_one_of("tool_choice", self.choice, ["auto", "none", *(["required", *names] if tools else ())])
        return tuple(tool for tool in tools if self.choice in ("auto", "required", tool.name))

    @property
    def kept(self) -> tuple[str | tuple[str, ...], int | None] | None:
        """What a reply that is cut keeps; None for the defaults."""
        choice = self.choice if isinstance(self.choice, str) else tuple(self.choice)
        return None if (choice, self.max_calls) == ("auto", None) else (choice, self.max_calls)

    @property
    def must_call(self) -> bool:
        """Whether the reply is calls, and no text."""
        return (
            "auto" not in self.choice if isinstance(self.choice, list | tuple) else self.choice not in ("auto", "none")
        )


def _reply_options(piece: WrittenPiece | None) -> ReplyOptions:
    """Return the options of a reply that its piece has kept."""
    kept = None if piece is None or piece.options is None else piece.options.reply
    return {} if kept is None else {"tool_choice": kept[0], "max_calls": kept[1]}


def _begin(
    chats: Sequence[ChatT],
    generator: Generator | None,
    options: ReplyOptions,
    *,
    resumes: bool = False,
) -> tuple[Sequence[ChatT], PieceMaker, Options]:
    """Return the arguments of a reply, checked; with a `ReplyMaker` if it may call: if tools were given to it, or if its text is free."""
    if resumes:
        options = {**_reply_options(chats[0].state.rows[0][0].piece), **options}
    choice, tools = _ToolChoice.of(options), options.get("tools")
    if tools is not None:
        chats = [chat._copy_with(format=chat._format.with_tools(tools)) for chat in chats]
    chosen = generate.text(chats[0].model) if generator is None else generator
    for chat in chats:
        _check(chat, chosen)
    if chosen.shown_schema:
        chats = [chat._showing(chosen.shown_schema) for chat in chats]
    own = ReplyOptions.__annotations__.keys() - PieceOptions.__annotations__.keys()
    checked = Options.of({name: value for name, value in options.items() if name not in own}, resumes=resumes)
    thinking = chosen.thinking_of(checked)
    checked = with_ends(checked if thinking is None else replace(checked, thinking=thinking), chats)
    may_call = choice.tools_of(chats[0]) and (tools or choice.must_call or chosen.constraint is None)
    checked = replace(checked, reply=choice.kept)
    if thinking is None and not resumes:
        chats = [chat._behind_thoughts() for chat in chats]
    if may_call:
        begins = chats[0]._is_one_piece if resumes else not chats[0]._is_reply
        return chats, _reply_maker(chats[0], chosen, choice, begins=begins), checked
    if thinking is None:
        chats = [chat._behind_head() for chat in chats]
    return chats, chosen, checked


def _reply_maker(
    chat: Chat, generator: Generator, choice: _ToolChoice = _ToolChoice(), *, begins: bool = True
) -> ReplyMaker:
    """Return the generator of a reply that may call; `begins` is False for one that has begun with a text."""
    assert chat._format.form is not None
    calls = partial_call(generate.fsm, generator.model, end="eos")  # calls end by themselves
    form, tools = chat._format.form, choice.tools_of(chat)
    head = head_of(chat._format.template) if begins else ""
    return reply_maker(generator, form, tools, calls, must_call=choice.must_call, max_calls=choice.max_calls, head=head)


def _check(chat: Chat, generator: Generator) -> None:
    """Raise for a generator that cannot write the next reply of a conversation."""
    expected = "a generator, such as `generate.text(model)`, or a text"
    is_continuous = not isinstance(generator, Generator) and isinstance(
        getattr(generator, "generator", None), Generator
    )
    advice = "A chat is continued as it is: pass the generator, without `continuous`." if is_continuous else ""
    check("reply", generator, isinstance(generator, Generator), expected, advice)
    if chat._is_reply and chat._turns[-1].message.get("tool_calls"):
        raise ChatError(
            "expected the results of the calls before another reply: `chat.tool(result)` for each of `chat.tool_calls`"
        )
    if generator.model is not chat.model:
        raise ModelMismatch(
            f"expected a generator of the conversation's model {chat.model!r}, got one of {generator.model!r}"
        )
    advice = "For several write `Chat.replies(chat.fork(3), generator)`."
    check("sampler", generator.sampler, gives_one_text(generator.sampler), "a sampler that gives one reply", advice)
