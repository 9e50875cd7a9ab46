"""`FieldRows`: the rows of a call that write JSON, and choose the values of fields that have few texts as wholes (`field_law`), each with
its `FieldProgram`. All else is drawn token by token.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

from outlines_cont.engine.piece import RowStatus
from outlines_cont.engine.row import Row, RowProgram
from outlines_cont.engine.steering import follow_policies
from outlines_cont.errors import KVBudgetError
from outlines_cont.generation.choices.field_law import Field, FieldLaw
from outlines_cont.generation.choices.field_prior import FieldPrior
from outlines_cont.generation.choices.json_values import FieldFinder, Place, Value, place_of
from outlines_cont.generation.choices.spelling_tree import Scorings, SpellingTree
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.constraint import CheckedConstraint, CheckedState, Constraint
from outlines_cont.state.row import FORCED, GENERATED, StateRow


class FieldRows:
    """The rows of a call that choose the values of fields as wholes; rows with the same tokens are scored once."""

    def __init__(
        self, model: LanguageModel, finder: FieldFinder, temperature: float, prior: FieldPrior | None = None
    ) -> None:
        """Choose by a temperature, 0 for the most probable value; `prior` is what the texts are calibrated by."""
        self.temperature, self.prior = temperature, prior
        self._model, self._finder = model, finder
        self._scorings = Scorings(model)
        self._fields: dict[Any, Field | None] = {}
        self._trees: dict[Any, SpellingTree] = {}
        self._laws: dict[SpellingTree, FieldLaw] = {}

    def prepare(self, row: Row) -> None:
        """Do nothing: a field begins later."""

    def program(self) -> FieldProgram:
        """Return the program of a row."""
        return FieldProgram(self)

    def field_of(self, row: Row) -> Field | None:
        """Return the field that begins at the end of a row, which would sample there; None where none does, or has no room."""
        policy, state = _constraint_of(row)
        if policy is None or row.policies.exclusions.entries or not self._finder.may_begin(state):
            return None
        key = _key(row)
        if key not in self._fields:
            values = self._values(row, policy, state)
            found = Field.of(self._model, policy.token_fsm, values, row.token_ids, state) if values else None
            self._fields[key] = found
        field, room = self._fields[key], row.room()
        return field if field is None or room is None or room >= max(map(len, field.paths)) else None

    def tree_of(self, row: Row, field: Field) -> SpellingTree | None:
        """Return the texts of a field after a row; None if the row is to feed its last tokens first."""
        key = _key(row)
        if key not in self._trees:
            if not row.feed.is_ready(row.length):
                # Without keys and values, which cost a new batch of all rows: rows that have yet to feed come here again and again.
                bare = SpellingTree(_as_value(row, with_kv=False), field.paths, may_repeat=True)
                if not bare.is_joint(self._model, num_cached=row.cached):
                    return None
            self._trees[key] = SpellingTree(_as_value(row), field.paths, may_repeat=True)
        return self._trees[key]

    def _values(self, row: Row, policy: Constraint, state: int) -> tuple[Value, ...]:
        written = policy.spelled(row.piece_ids, row.healed)
        place = place_of(written)
        if (
            place is None
            or row.piece.text.num_unspelled(row.token_ids)
            or (place.num_open and not _is_forced(row, place))
        ):
            return ()
        values = self._finder.values(state, in_string=place.in_string)
        if not place.in_string and all(value.text.startswith(b'"') for value in values):
            # The mask draws what stands before the strings, and their quote, unless a token has it with what follows.
            tokens = self._model.tokenizer.token_bytes
            allowed = (tokens[token_id] or b"" for token_id in policy.token_fsm.allowed_token_ids(state).tolist())
            return values if any(b'"' in token[:-1] for token in allowed) else ()
        return values

    def is_scored(self, row: Row, field: Field, tree: SpellingTree) -> bool:
        """Return whether a tree is scored, or has an error, and those of the prior; called between two steps of the engine until it is."""
        if tree in self._laws:
            return True
        # Rows with the same beginning of a record share the trees of the prior, which one task scores.
        others = [] if self.prior is None else self.prior.trees(row.piece_ids, field)
        found = [self._scorings.are_scored(trees) for trees in ([tree], others)]
        return all(found)

    def law(self, row: Row, field: Field, tree: SpellingTree) -> FieldLaw:
        """Return the law of a field, or raise the error of its tree."""
        if tree.error is not None:
            raise tree.error
        if tree not in self._laws:
            logs = None if self.prior is None else self.prior.logs(row.piece_ids, field)
            law = self._laws[tree] = FieldLaw(field, tree, self.temperature or 1.0, logs)
            if self.prior is not None:
                self.prior.shares.append(law.share)
            tree.release()
        return self._laws[tree]

    def has_no_room(self, row: Row, tree: SpellingTree) -> bool:
        """Return whether there was no room for the keys and values of the texts of a field; its value is drawn under the mask then."""
        if isinstance(tree.error, KVBudgetError) and self.prior is None:
            self._fields[_key(row)] = None
            return True
        return False

    def close(self) -> None:
        """Cancel what is being scored."""
        self._scorings.close()


def _key(row: Row) -> Any:
    # Equal ids of pinned tokens have other keys and values.
    return row.piece_start, tuple(row.token_ids), id(row.source.kv) if row.source.pinned else None


def _constraint_of(row: Row) -> tuple[Constraint | None, int]:
    """Return the constraint that alone steers a row, and its state."""
    if len(row.policies.policies) != 1:
        return None, 0
    (policy,), (state,) = row.policies.policies, row.policies.states
    if isinstance(policy, CheckedConstraint) and isinstance(state, CheckedState):
        return policy.constraint, state.inner
    return (policy, state) if isinstance(policy, Constraint) else (None, 0)


def _is_forced(row: Row, place: Place) -> bool:
    """Return whether nothing of the string that is open at the end of a row was drawn."""
    sizes = accumulate(len(row.model.tokenizer.text_bytes([token_id])) for token_id in reversed(row.piece_ids))
    for index, size in zip(range(row.length - 1, -1, -1), sizes, strict=False):
        if row.was_drawn(index):
            return False
        if size >= place.num_open:
            return True
    return False


def _as_value(row: Row, *, with_kv: bool = True) -> StateRow:
    """Return a row as it is now, with the keys and values of what it has fed, unless they are not wanted."""
    written = row.tokens.written_to(row.source, has_failed=False)
    is_ready = row.feed.is_ready(row.length)
    kv = row.model.engine.kv_of(row) if with_kv else None
    return replace(written, kv=kv, logits=row.logits if is_ready else None, piece=None, error=None)


class FieldProgram(RowProgram):
    """The program of a row that follows its constraint, and where a field begins waits for the scores of its texts, and writes one."""

    def __init__(self, rows: FieldRows) -> None:
        self._rows = rows

    def plan(self, row: Row) -> None:
        """Plan the next step."""
        if row.status is not RowStatus.CALLING:
            follow_policies(row)
        while row.status in (RowStatus.SAMPLING, RowStatus.CALLING):
            field = self._rows.field_of(row)
            if field is None:
                break
            tree = self._rows.tree_of(row, field)
            if tree is None or not self._rows.is_scored(row, field, tree):
                self.reads_ahead, row.status = tree is None, RowStatus.CALLING
                break
            row.status = RowStatus.WAITING
            if not self._rows.has_no_room(row, tree):
                row.guarded(self._write, row, field, tree)
            follow_policies(row)
        if row.has_ended:
            row.program = None

    def _write(self, row: Row, field: Field, tree: SpellingTree) -> None:
        law = self._rows.law(row, field, tree)
        path = law.best
        if self._rows.temperature != 0:
            path, row.stream = law.draw(row.stream.peek()), row.stream.after()
        for token in law.tokens(path):
            row.append(token.token_id, FORCED if token.is_forced else GENERATED, token.logprob, token.sampling_logprob)
            row.counts.forced_tokens += token.is_forced
            row.counts.sampled_tokens += not token.is_forced
