"""A controller without a script, token by token: every fourth token with letters is taken back and written in capitals."""

from outlines_cont import control, models
from outlines_cont.control import Branch, Controller, TokenSet
from outlines_cont.models import HuggingFaceModel


class Uppercase(Controller):
    def __init__(self, model: HuggingFaceModel, max_tokens: int) -> None:
        self.tokenizer = model.tokenizer
        self.allowed = TokenSet.of(i for i, data in enumerate(model.tokenizer.token_bytes) if data)
        self.left = max_tokens
        self.count = 0

    def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        self.left -= 1
        if self.left < 0:
            return []
        if last_append and not last_backtrack:
            self.count += 1
            text = self.tokenizer.text_bytes(last_append).decode(errors="replace")
            if self.count % 4 == 0 and text.upper() != text:
                return [Branch(backtrack=len(last_append), ff_tokens=[self.tokenizer.encode_inside(text.upper(), ())])]
        return [Branch(sample_mask=self.allowed)]


def main() -> None:
    model = models.tiny()
    prompt = "Message: Please send 12 desk lamps to Porto by 2031-05-14.\nRecord: "
    program = control.start(model, Uppercase(model, 40), prompt)
    retracted = sum(event.num_tokens for event in program.events() if isinstance(event, control.Retract))
    print(program.result().check().text)
    print(retracted, "tokens taken back")


if __name__ == "__main__":
    main()
