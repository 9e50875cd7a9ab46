"""backtrack_sampler's creative strategy as a policy of one's own: the most probable token is passed over while others are likely, and
where that has led into the vague, the row goes back and takes it after all."""

from dataclasses import dataclass, replace
from typing import Any

from outlines_cont import continuous, generate, models
from outlines_cont.policies import Branch, Policy, RowView, TokenSet


@dataclass(frozen=True)
class Judged:
    """Whether the last token stays as it is, and whether the next one will."""

    last: bool = True
    next: bool = False


@dataclass(frozen=True)
class Creative(Policy[Judged]):
    sure: float = 0.8  # a token as probable as that is not passed over
    many: int = 9  # so many tokens for most of the probability: the model does not know what to write

    @property
    def horizon(self) -> int:
        return 3

    @property
    def max_retries(self) -> int:
        return 200

    def initial(self, row: RowView) -> Judged:
        return Judged()

    def advance(self, state: Judged, token_id: int) -> Judged:
        return Judged(last=state.next)

    def rewound(self, before: Judged, after: Judged) -> Judged:
        return replace(after, next=True)

    def give_up(self, state: Judged, row: RowView, reason: str) -> Judged:
        return Judged()  # enough: what stands here stays

    def branches(self, state: Judged, row: RowView) -> list[Branch]:
        free = [Branch(sample_mask=TokenSet.all)]
        last = len(row.token_ids) - 1
        if state.last or not row.was_drawn(last):
            return free
        best, probs = self.ranked(row, last)
        if sum(float(p) for p in probs[: self.many]) < 0.65 and last - 1 >= row.first_open and row.was_drawn(last - 1):
            before, _ = self.ranked(row, last - 1)
            if row.token_ids[last - 1] != before:
                return [Branch(backtrack=2, sample_mask=TokenSet.of([before]))]
        if row.token_ids[last] == best and float(probs[0]) < self.sure:
            return [Branch(backtrack=1, avoid=TokenSet.of([best]))]
        return free

    def ranked(self, row: RowView, index: int) -> tuple[int, Any]:
        """The most probable token at a place, and the probabilities, the largest first."""
        logits = row.logits_before(index)
        assert logits is not None  # the last `horizon` places are kept
        probs = logits.softmax(0).sort(descending=True)
        return int(probs.indices[0]), probs.values


def main() -> None:
    model = models.tiny()
    prompt = "Message: Hello, this is Marta Keller from Porto. Please send 12 desk lamps.\nRecord: "
    for name, chosen in (("plain", []), ("creative", [Creative()])):
        state = continuous(generate.text(model))(prompt, max_tokens=50, policies=chosen)
        print(f"{name:9}{state.values[0][0]} ({int(state.retries)} retries)")


if __name__ == "__main__":
    main()
