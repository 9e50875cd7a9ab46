"""How a running piece steers its row: `plan` follows the merged branches of its policies (rewind, append, exclude tokens) until the row
samples under a mask, waits or ends; `take` appends the token that was drawn. A piece ends if its policies stop it, or only end
tokens are allowed, or one is drawn (unless a policy rewinds there), or a token that leaves its language (`Exits`), at its length limits,
which may cut forced tokens, and by an error, as in a policy. Policies that neither sample, wait nor stop fail after 10,000 branches.

What follows a piece (`Piece.then`) begins when it has ended, in the same row.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import perf_counter

import torch

from outlines_cont.engine.backtracking import backtrack, exclude_exit, retry_earlier
from outlines_cont.engine.piece import Next, RowStatus, Sample
from outlines_cont.engine.row import Row
from outlines_cont.engine.track import Top
from outlines_cont.errors import DeadEnd, UnsupportedBranch
from outlines_cont.immutable import changed
from outlines_cont.models.tokenizer.special_names import encode_bytes_inside
from outlines_cont.policies.branch import Branch, Exit, Exits, TokenSet
from outlines_cont.policies.compose import row_ahead
from outlines_cont.policies.slow_work import SlowWork, TooLong, bounded
from outlines_cont.state.row import APPENDED, FORCED, GENERATED
from outlines_cont.user_code import user_code_error

# The most branches of the policies of a row in one step.
_MAX_BRANCHES = 10_000


def plan(row: Row) -> None:
    """Plan the next step of a row, by its program or its policies; does nothing while it waits for a forward."""
    if row.piece.text.final is not None:
        row.hold_final()
    if row.status is not RowStatus.WAITING and row.awaits_forward:
        return
    if row.slow is not None and not _is_computed(row, row.slow):
        return
    if row.program is None:
        follow_policies(row)
        return
    try:
        row.program.plan(row)
    except Exception as error:  # one of the program itself, which could not be told of it
        row.fail(error)


def _is_computed(row: Row, slow: SlowWork) -> bool:
    """Return whether a row is to be planned, as what it waits for has been computed; one that waits for its mask only draws then."""
    if row.status is not RowStatus.SAMPLING:
        return slow.is_done  # its branches, which the plan takes
    if slow.is_done:
        row.slow = None
        row.guarded(slow.take)
    return False


def plan_if_drafted(row: Row) -> bool:
    """Plan if the last token was an accepted draft token; return whether the next can be drawn without a forward."""
    if not row.feed.is_drafted or row.status is not RowStatus.WAITING or row.cached < len(row.tokens.ids):
        return False
    plan(row)
    row.make_masks()
    return row.is_ready


def follow_policies(row: Row) -> None:
    """Follow the branches of the policies; an error in one of them is that of the row."""
    row.guarded(_decide, row)
    if row.piece.finish_reason:
        row.guarded(_end_piece, row)


def follow(row: Row, branch: Branch) -> None:
    """Execute a branch, then those of the policies; an error in one of them is that of the row."""

    def act() -> None:
        if _follow(row, branch) and row.policies.policies:
            _decide(row)
        row.leave_when_scored()

    row.guarded(act)


def _end_piece(row: Row) -> None:
    """Begin what follows a piece that has ended, or let the row leave."""
    then = row.piece.spec.then
    following = None if then is None or row.piece.ends_row else then(row)
    if following is not None:
        _begin_next(row, following)
        return
    row.piece = changed(row.piece, ends_row=True)
    row.leave_when_scored()


def _begin_next(row: Row, following: Next) -> None:
    """Begin the next piece of a row, and plan its next step. The row stays in its batch, and its stream goes on."""
    ended, between = row.piece, following.between
    room = ended.limits.context_room(row.length)
    if room is not None and room < len(between):
        row.piece = changed(ended, ends_row=True)
        row.end("length")
        row.leave_when_scored()
        return
    if between:
        row.begin(replace(ended.spec, policies=()))
        row.append_known(between, APPENDED)
    row.feed.settle()
    row.begin(following.piece, start=following.start, guidance=following.guidance)
    row.program = following.program or row.program
    row.piece = changed(row.piece, thoughts=following.thoughts or ended.thoughts)
    if ended.text.final is not None:  # a stream shows the row
        row.hold()
    plan(row)


def take(row: Row, token_id: int, logprob: float, sampling_logprob: float, top: Top = ()) -> None:
    """Append a sampled token, or end on it, and advance the stream of random numbers; see `Draw`."""
    row.status = RowStatus.WAITING
    exits = row.sample.exits
    try:
        found = None if exits is None else exits.of(token_id)
        if found is not None and not has_room(row, found):
            row.end("length")  # if the piece is resumed, the same is drawn again
            return
        stream, is_drafted, drawing = row.stream, row.feed.is_drafted, row.sample.drawing
        assert drawing is not None
        if drawing.needs_random:
            row.stream = stream.after()
        if found is not None and not _leave(row, token_id, found, logprob - sampling_logprob):
            row.stream, row.status = stream, RowStatus.SAMPLING  # the same is drawn again
            return
        row.counts.sampled_tokens += 1
        if is_drafted:
            row.count_draft("saved_forwards")
        if found is not None:
            return
        if token_id in row.piece.limits.end_ids:
            _end_on(row, token_id, logprob, logprob - sampling_logprob)
        else:
            row.append(token_id, GENERATED, logprob, sampling_logprob, top)
            if row.sample.sequences:
                _append_sequence(row, token_id)
    except Exception as error:
        row.refuse(error)
    except SystemExit as error:
        row.refuse(user_code_error(error))


def _decide(row: Row) -> None:
    """Follow branches until the row samples, waits or has ended."""
    for _ in range(_MAX_BRANCHES):
        if row.piece.finish_reason:
            break
        try:
            branches = _next_branches(row, is_bounded=True)
        except TooLong:
            row.slow, row.status = SlowWork(partial(row.policies.branches, row), row.job), RowStatus.WAITING
            return
        if branches and not _follow(row, branches[0]):
            break
    else:
        raise UnsupportedBranch(
            f"expected policies that sample, wait or stop, but after {_MAX_BRANCHES:,} branches at {row.excerpt} none of them did; "
            f"{row.deciding_policy!r} has decided last. A policy that appends or backtracks must end after some steps."
        )


def _next_branches(row: Row, *, is_bounded: bool = False) -> list[Branch]:
    """Return the branch to take; none if the policies stop the row, or one of them has rewound it at its end.

    With `is_bounded`, raise `TooLong` if that takes too long for a step; see `SlowWork`.
    """
    started = perf_counter()
    if row.slow is not None:
        slow, row.slow = row.slow, None
        taken: tuple[list[Branch], int] = slow.take()
        branches, decider = taken
    elif is_bounded:
        with bounded():
            branches, decider = row.policies.branches(row)
    else:
        branches, decider = row.policies.branches(row)
    row.decider = decider
    row.counts.mask_seconds += perf_counter() - started
    if not branches:
        stop = row.policies.stop(decider)
        _end_text(row, row.policies.policies[decider].finish_reason, stop)
    elif row.piece.owed and not any(branch.is_rewind for branch in branches):
        # The rest of a forced text that a limit has cut, in place of what would be forced now.
        return [Branch(ff_tokens=[[*row.piece.owed]])]
    return branches


def _follow(row: Row, branch: Branch) -> bool:
    """Execute a branch; return whether the policies are to be called again."""
    is_rewind = branch.is_rewind
    if is_rewind:
        cuts = _cut_by_stop(row, branch)
        if not backtrack(row, branch, row.model.vocab_size):
            return True
        if cuts:
            row.tokens = row.tokens.changed(cuts=row.tokens.cuts + cuts)
    if branch.sample_mask is not None:
        return _request_sample(row, branch.sample_mask, branch)
    if branch.ff_tokens:
        _append_forced(row, branch.ff_tokens[0], APPENDED if branch.backtrack else FORCED)
    elif not is_rewind:
        row.status = RowStatus.WAITING
        return False
    return True


def _cut_by_stop(row: Row, branch: Branch) -> tuple[tuple[int, float, int], ...]:
    """Return what a branch removes because of a stop text: it was drawn, and counts in the score."""
    if not branch.backtrack or row.decider is None or row.policies.stop(row.decider) is None:
        return ()
    return row.tokens.drawn_from(row.length - branch.backtrack)


def _request_sample(row: Row, mask: TokenSet, branch: Branch) -> bool:
    """Sample under a mask in this step; return True if the row was rewound instead, so that the policies are called again."""
    exits, length, limits = branch.exits, row.tokens.length, row.piece.limits
    is_short = row.piece.spec.min_tokens > 0 and row.is_short
    if exits is not None:
        mask, exits = _with_exits(row, mask, exits, is_short=is_short)
    sampled = None if is_short else limits.known.get(id(mask))
    if sampled is None:
        sampled = limits.sampled(mask, row.model.vocab_size, is_short=is_short)
    mask = sampled.mask
    left = row.policies.left(mask, length) if row.policies.exclusions.entries else mask
    if not sampled.has_text:
        if not sampled.has_end:
            raise DeadEnd(
                f"no token is allowed after {row.excerpt}. "
                "The policies of this row exclude each other; give the generator fewer of them."
            )
        if left:
            return _end_text(row, "constraint")
    if left is not mask and not left:
        retry_earlier(row, "no other token is allowed")
        return True
    if row.is_full:
        row.end("length")
        return False
    if row.feed.cached >= length or row.negative is not None:
        row.need_logits(left)
    temperature = branch.temperature
    row.sample = Sample(left, branch.ff_tokens, temperature, exits, row.piece.spec.drawing(temperature))
    row.status = RowStatus.SAMPLING
    return False


def _with_exits(row: Row, mask: TokenSet, exits: Exits, *, is_short: bool) -> tuple[TokenSet, Exits | None]:
    """Return a mask, and its exits, without those that are not allowed now: in a row that is too short, or where a policy allows no end."""
    if is_short:
        inside = mask & exits.inside
        return (inside, None) if inside & row.piece.limits.not_eos else (mask, exits)
    if exits.may_end and not _may_end(row, mask):
        exits = exits.not_here()
        mask = mask & exits.mask
    return mask, exits


def _append_forced(row: Row, token_ids: list[int], kind: bytes) -> None:
    """Append tokens without sampling, unless the first of them is excluded here."""
    exclusion = row.policies.exclusions.at(row.length) if kind == FORCED else None
    if exclusion is not None and token_ids[0] in exclusion.excluded:
        retry_earlier(row, "the text that follows is forced")
    else:
        append_all(row, token_ids, kind)


def append_all(row: Row, token_ids: list[int], kind: bytes) -> None:
    """Append tokens without sampling, as many as the limits allow; the rest is appended if the piece is resumed."""
    room = row.room(token_ids) if kind == FORCED else row.piece.limits.context_room(row.length)
    now, owed = (token_ids, []) if room is None else (token_ids[:room], token_ids[room:])
    row.owe(owed)
    if now:
        row.append_known(now, kind)
    else:
        row.end("length")


def _append_sequence(row: Row, token_id: int) -> None:
    """Append what follows a drawn token by its branch."""
    follow = next((ids for ids in row.sample.sequences if ids[0] == token_id), None)
    if follow and len(follow) > 1:
        if row.policies.policies and row.room(follow[1:]) == 0:
            row.owe(follow[1:])  # policies may rewind or stop before the limit ends the piece
        else:
            append_all(row, follow[1:], FORCED)


def has_room(row: Row, found: Exit) -> bool:
    """Return whether a row may have as many more tokens as the end of its text takes."""
    if len(found.text) <= 1:  # a row that draws may have one
        return True
    spelled = encode_bytes_inside(row.model.tokenizer, found.text, row.tokens.ids)
    room = row.room(spelled)
    return room is None or len(spelled) <= room


def _leave(row: Row, token_id: int, found: Exit, ratio: float) -> bool:
    """End the piece with a token that leaves its language, after the bytes of it that belong to the text, which are spelled anew.

    Where the policies do not let these bytes be written, or the text end after them, no token that leaves after them is drawn here.
    Returns False, and the row is as before, if policies take too long for a step; the row waits for them.
    """
    start, logits, logprob = row.length, row.logits, row.end_logprob(found.token_ids)
    spelled = encode_bytes_inside(row.model.tokenizer, found.text, row.tokens.ids)
    if not spelled:
        _end_on(row, token_id, logprob, ratio)
        return True
    if spelled[0] not in row.excluded(start):
        for following in (*spelled[1:], None):
            append_all(row, [spelled[row.length - start]], APPENDED)
            try:
                branches = [] if row.has_ended else _next_branches(row, is_bounded=True)
            except TooLong:
                slow = SlowWork(partial(row.policies.branches, row_ahead([*row.token_ids], row)), row.job)
                _take_back(row, start, logits)
                row.slow = slow
                return False
            if not branches:  # the context is full, or a policy has ended the text, or rewound it
                return True
            branch = branches[0]
            mask = branch.sample_mask
            if branch.is_rewind or (following is not None and mask is not None and following not in mask):
                break
        else:
            may_end = _may_end(row, mask)
            objection = _objection(row) if may_end else None
            if may_end and objection is None:
                _end_on(row, token_id, logprob, ratio)
                return True
            branch = objection or Branch()
        if branch.is_rewind and not (branch.is_retry and branch.backtrack <= row.length - start):
            _follow(row, branch)
            return True
        _take_back(row, start, logits)
    exclude_exit(row, found)
    return True


def _take_back(row: Row, start: int, logits: torch.Tensor | None) -> None:
    """Remove the tokens from `start` on, the logits before which were those; nothing was fed since."""
    row.decider = None
    row.rewind(row.length - start)
    row.feed.logits = logits


def _may_end(row: Row, mask: TokenSet | None) -> bool:
    """Return whether a mask has a token with which the model ends a text."""
    return mask is not None and any(token_id in mask for token_id in row.model.eos_token_ids)


def _end_on(row: Row, token_id: int, logprob: float, ratio: float) -> None:
    """End the piece on a token that was drawn, unless a policy rewinds; `ratio`: see `LogprobSum.end_ratios`."""
    ends, ratios = row.tokens.ends, row.tokens.end_ratios
    row.tokens = row.tokens.changed(ends=(*ends, (row.length, logprob)), end_ratios=(*ratios, (row.length, ratio)))
    _end_text(row, "stop")
    if not row.has_ended:
        row.tokens = row.tokens.changed(ends=ends, end_ratios=ratios)
    elif token_id in row.piece.limits.stop_tokens:
        row.piece = changed(row.piece, stop=token_id)


def _end_text(row: Row, reason: str, stop: str | int | None = None) -> bool:
    """End the piece, by a stop text if one is given, unless a policy rewinds; return whether the policies are to be called again."""
    objection = _objection(row, is_stopped=stop is not None)
    if objection is not None:
        return _follow(row, objection)
    row.end(reason, stop)
    return False


def _objection(row: Row, *, is_stopped: bool = False) -> Branch | None:
    """Return the branch of a policy that rewinds because the text must not end here; None if it may end."""
    if not row.policies.policies:
        return None
    found = row.policies.at_end(row, is_stopped=is_stopped)
    if found is None:
        return None
    branch, row.decider = found
    if not branch.is_rewind:
        raise UnsupportedBranch(
            f"expected None or a branch that rewinds from `at_end` at {row.excerpt}, got {branch!r} of {row.deciding_policy!r}. "
            "Let it backtrack, or exclude tokens."
        )
    return branch
