"""Classifier-free guidance: what the negative message would say is avoided, the more the larger the scale."""

import fsm
from outlines_cont import BatchedExecutor, guide, models

ORDER = "Message: Please send 12 desk lamps to Porto. The last ones arrived broken.\nKind: "
PLAIN = "Message: Please send 12 desk lamps to Porto.\nKind: "
KINDS = fsm.choice(["order", "invoice", "shipment", "complaint", "quote"])


def main() -> None:
    model = models.tiny()
    with BatchedExecutor(model) as executor:
        for scale in (0, 1, 2, 4):
            positive, negative = executor.create(ORDER), executor.create(PLAIN)
            positive.constrain(KINDS)
            guided = guide(positive, negative, scale)
            state = guided.write(8)
            print(f"scale {scale}: {str(state).removeprefix(ORDER)}")


if __name__ == "__main__":
    main()
