"""A tree of completions: every leaf becomes two forks of itself after 16 tokens, and all leaves run in one batch."""

from outlines_cont import CompletionTree, models
from outlines_cont.conversation.tree import to_text

PROMPT = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14.\nRecord: "


def main() -> None:
    model = models.tiny()
    tree = CompletionTree(model, PROMPT, depth=72, every=16, seed=0, distinct=True)
    with model.meter() as meter:
        for _ in tree.grow():
            pass
    print(to_text(tree))
    print(f"{len(tree.leaves)} leaves, {tree.num_sampled} tokens sampled in {meter.forwards} forwards")


if __name__ == "__main__":
    main()
