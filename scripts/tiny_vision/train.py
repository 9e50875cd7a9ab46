r"""Train the bundled vision model in three stages, each a run of its own; the schedules follow the clock.

    python -m scripts.tiny_vision.train reader --fonts FONTS --output scratch/reader --minutes 20
    python -m scripts.tiny_vision.train tower --fonts FONTS --output scratch/tower --minutes 20
    python -m scripts.tiny_vision.train joint --fonts FONTS --reader scratch/reader --tower scratch/tower \
        --output scratch/vision --minutes 30
    python -m scripts.tiny_vision.train joint --fonts FONTS --from outlines_cont/models/tiny_vision \
        --dense 16 --output scratch/longer --minutes 60

*reader* teaches the language model to read receipts whose patches are given as the characters in them: nothing is drawn. *tower* teaches
the vision tower which characters are in each patch. *joint* puts the two together and trains both on records of pictures; with `--from`
it goes on from a model folder. A run that was ended goes on with `--resume` and the same options.
"""

import argparse
import json
import math
import random
import re
import time
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration

from scripts.tiny_vision.assemble import DEVIATION, MEAN, new_network, new_tokenizer, save
from scripts.tiny_vision.documents import CHARACTERS, COLUMNS, NUM_CLASSES, NUM_SLOTS, ROWS, Document, DocumentSource
from scripts.tiny_vision.fonts import HELD_OUT, TRAINED, Fonts
from scripts.tiny_vision.words import ReceiptWords

NUM_PATCHES = ROWS * COLUMNS
KEY_WEIGHT = 0.1
"""Weight of a character of a name in a record: the schema forces them."""
FIRST_WEIGHT = 2.0
"""Weight of the first character of a value: where it stands in the picture is decided there."""
BLANK_WEIGHT = 0.2
"""Weight of a slot without a character in the loss of the tower."""
DENSE_SHARE = 0.8
"""Share of pictures that are full of text in the training of the tower."""
_CHECKPOINT = "stage.safetensors"
_PROGRESS = "progress.safetensors"
"""What a run needs beside its checkpoint to go on: the running mean, the optimizers, the clock."""
_KEY = re.compile(r'"(\w+)":')
_VALUE = re.compile(r'":\[?\{?"?')


@dataclass(slots=True)
class Batch:
    """Documents as tensors, padded at the right.

    Attributes:
        ids, positions, branch: (B, T) int64; branch 0 is the prefix and the image, -1 padding.
        images: (B, T) bool, the places of patches.
        places, labels: (N,) int64 of labelled positions of the flattened batch.
        weights: (N,) float32.
        names: of the N labels, (document, number of the branch, kind of the branch).
        slots: (B, P, S) int64.
        pixels: (B, 3, H, W) float32.
    """

    ids: Tensor
    positions: Tensor
    branch: Tensor
    images: Tensor
    places: Tensor
    labels: Tensor
    weights: Tensor
    names: list[tuple[int, int, str]]
    slots: Tensor
    pixels: Tensor

    def mask(self) -> Tensor:
        """(B, 1, T, T) bool: each position sees the image and its own branch, and nothing behind itself."""
        same = (self.branch[:, None, :] == self.branch[:, :, None]) | (self.branch[:, None, :] == 0)
        return (same & torch.ones(self.ids.shape[1], self.ids.shape[1], dtype=torch.bool).tril())[:, None]


def batch_of(documents: list[Document], tokenizer: Tokenizer) -> Batch:
    """Return a batch; see `Batch`."""
    rows: list[dict[str, list[Any]]] = []
    names: list[tuple[int, int, str]] = []
    for number, document in enumerate(documents):
        prefix = tokenizer.encode(document.prefix).ids
        ids = [*prefix, *[1] * NUM_PATCHES]
        size = len(ids)
        row: dict[str, list[Any]] = {
            "ids": ids,
            "positions": [*range(size)],
            "branch": [0] * size,
            "labels": [-1] * size,
            "weights": [0.0] * size,
        }
        for place, (before, text) in enumerate(document.branches, 1):
            head, tail = tokenizer.encode(before).ids, tokenizer.encode(text).ids
            length = len(head) + len(tail)
            row["ids"] += head + tail
            row["positions"] += range(size, size + length)
            row["branch"] += [place] * length
            row["labels"] += [-1] * (len(head) - 1) + tail + [0]
            row["weights"] += [0.0] * (len(head) - 1) + weights_of(text) + [1.0]
            names += [(number, place, before.strip(" :\n"))] * (len(tail) + 1)
        rows.append(row)
    longest = max(len(row["ids"]) for row in rows)
    padding = {"ids": 0, "positions": 0, "branch": -1, "labels": -1, "weights": 0.0}
    made = {
        name: torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])
        for name, value in padding.items()
    }
    labels = made["labels"].flatten()
    places = (labels >= 0).nonzero().flatten()
    pictures = torch.from_numpy(np.stack([document.picture for document in documents])).float()
    return Batch(
        ids=made["ids"],
        positions=made["positions"],
        branch=made["branch"],
        images=made["ids"] == 1,
        places=places,
        labels=labels[places],
        weights=made["weights"].flatten()[places],
        names=names,
        slots=torch.from_numpy(np.stack([document.slots for document in documents])),
        pixels=((pictures / 255 - MEAN) / DEVIATION)[:, None].expand(-1, 3, -1, -1),
    )


def weights_of(text: str) -> list[float]:
    """Return the weight of every byte of a generated text."""
    weights = [1.0] * len(text.encode())
    if len(weights) == len(text) and text.startswith("{"):
        for match in _KEY.finditer(text):
            weights[match.start() : match.end()] = [KEY_WEIGHT] * len(match.group())
        for match in _VALUE.finditer(text):
            if match.end() < len(weights):
                weights[match.end()] = FIRST_WEIGHT
    elif weights:
        weights[0] = FIRST_WEIGHT
    return weights


class Slots(nn.Module):
    """Patches as embeddings of the characters in them, (B, P, S) int64 to (B, P, D) float32."""

    def __init__(self, embeddings: Tensor, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(NUM_CLASSES, embeddings.shape[1]) for _ in range(NUM_SLOTS)])
        first = torch.tensor([0, *(tokenizer.encode(character).ids[0] for character in CHARACTERS)])
        known = embeddings[first]
        known[0] = 0.0
        for place, table in enumerate(self.tables):
            nn.init.normal_(table.weight, std=float(known.std()) * 0.5 * (place > 0))
            table.weight.data += known * (1.0 if place == 0 else 0.8)
            table.weight.data[0] *= place == 0

    def forward(self, slots: Tensor) -> Tensor:
        """Return the sum over the slots."""
        return sum(table(slots[..., place]) for place, table in enumerate(self.tables))


class Heads(nn.Module):
    """From the tower's output, which characters are in a patch: (B, P, W) float32 to (B, P, S, C) logits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, NUM_SLOTS * NUM_CLASSES)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits."""
        return self.linear(hidden).unflatten(-1, (NUM_SLOTS, NUM_CLASSES))


def tower_output(network: Any, pixels: Tensor) -> Tensor:
    """Return (B, P, W) hidden states of the patches, as the projector takes them."""
    return network.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-1][:, 1:]


def text_logits(network: Any, batch: Batch, features: Tensor) -> Tensor:
    """Return (N, V) logits of the labelled positions; `features` are (B, P, D), what stands for the patches."""
    embeddings = network.model.language_model.embed_tokens(batch.ids)
    embeddings = embeddings.masked_scatter(batch.images[..., None], features)
    mask = torch.where(batch.mask(), 0.0, torch.finfo(torch.float32).min)
    hidden = network.model.language_model(
        inputs_embeds=embeddings, attention_mask=mask, position_ids=batch.positions, use_cache=False
    ).last_hidden_state
    return network.lm_head(hidden.flatten(0, 1)[batch.places])


def text_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Return the weighted mean of the cross entropy."""
    return (
        functional.cross_entropy(logits, batch.labels, reduction="none") * batch.weights
    ).sum() / batch.weights.sum()


def tower_loss(logits: Tensor, slots: Tensor) -> Tensor:
    """Return the mean cross entropy of the characters, blank slots with less weight."""
    weights = torch.ones(NUM_CLASSES)
    weights[0] = BLANK_WEIGHT
    return functional.cross_entropy(logits.flatten(0, 2), slots.flatten(), weights)


class Clock:
    """Progress of a run, 0 to 1, and the learning rate's factor: linear warm-up over steps, then a cosine by the clock."""

    def __init__(self, minutes: float, warmup: int, seconds: float = 0.0, step: int = 0) -> None:
        self._start, self._seconds = time.monotonic() - seconds, minutes * 60
        self._warmup, self.step = warmup, step

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def progress(self) -> float:
        """The share of the time that is over."""
        return min(self.seconds / self._seconds, 1.0)

    def factor(self) -> float:
        """Return the factor of the learning rate."""
        return min((self.step + 1) / self._warmup, 1.0) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self.progress)))


class Muon(torch.optim.Optimizer):
    """Momentum whose step is made orthogonal (Newton and Schulz's iteration), for matrices: Jordan and others 2024.

    In float32, as torch's own multiplies in bfloat16, which is slow without its instructions. Steps are as long as those of AdamW.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take a step; matrices of one shape are made orthogonal together."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for parameters in shapes.values():
                moved = []
                for parameter in parameters:
                    kept = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                    kept.lerp_(parameter.grad, 1 - group["momentum"])
                    moved.append(parameter.grad.lerp(kept, group["momentum"]))
                size = 0.2 * max(parameters[0].shape) ** 0.5
                for parameter, step in zip(parameters, orthogonal(torch.stack(moved)), strict=True):
                    parameter.mul_(1 - group["lr"] * group["decay"]).add_(step, alpha=-group["lr"] * size)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices (N, R, C) with nearly the same singular vectors, and singular values near 1."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.mT if is_tall else matrices
    found = found / (found.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = found @ found.mT
        found = 3.4445 * found + (-4.7750 * square + 2.0315 * square @ square) @ found
    return found.mT if is_tall else found


def optimizers_of(modules: dict[str, nn.Module], lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the tower, which begins at random weights, and AdamW for the rest."""
    parameters = {name: list(module.parameters()) for name, module in modules.items()}
    matrices = [p for name in ("tower", "projector") for p in parameters.get(name, []) if p.dim() == 2]
    chosen = {id(p) for p in matrices}
    others = [p for part in parameters.values() for p in part if id(p) not in chosen]
    adam = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    return [Muon(matrices, 1.5 * lr), adam] if matrices else [adam]


class Run:
    """One stage: its networks, its source of documents, the loop and the log."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.tokenizer = new_tokenizer()
        self.network: Any = new_network(self.tokenizer)
        self.network.config._attn_implementation = "sdpa"
        if args.begin is not None:
            known = LlavaForConditionalGeneration.from_pretrained(args.begin, dtype=torch.float32)
            self.network.load_state_dict(known.state_dict())
        self.slots = Slots(self.network.model.language_model.embed_tokens.weight.detach(), self.tokenizer)
        self.heads = Heads(self.network.config.vision_config.hidden_size)
        for folder in (args.reader, args.tower):
            if folder is not None:
                self._load(folder)
        self.has_slots = args.reader is not None or args.begin is None
        self.has_pictures = args.stage != "reader"
        self.source = DocumentSource(ReceiptWords(False), Fonts(args.fonts, TRAINED, True), random.Random(args.seed))
        self.looks = {
            "new words": self._held_out(TRAINED, True),
            "new words and fonts": self._held_out(HELD_OUT, False),
        }
        self.mean: Any = None
        self.is_new_head = args.begin is not None and args.tower is None
        """Whether the tower does not yet learn from the heads, which begin at random weights."""
        self._rng = random.Random(f"dense {args.seed}")

    def _held_out(self, fonts: tuple[str, ...], with_default: bool) -> list[Batch]:
        source = DocumentSource(ReceiptWords(True), Fonts(self.args.fonts, fonts, with_default), random.Random("look"))
        return [batch_of([source.draw(self.has_pictures) for _ in range(16)], self.tokenizer) for _ in range(2)]

    def _modules(self) -> dict[str, nn.Module]:
        """Return the parts that the stage trains and saves, by name."""
        model = self.network.model
        reader = {"language": model.language_model, "slots": self.slots}
        tower = {"tower": model.vision_tower, "heads": self.heads, "projector": model.multi_modal_projector}
        return reader if self.args.stage == "reader" else tower if self.args.stage == "tower" else reader | tower

    def _load(self, folder: Path) -> None:
        model = self.network.model
        known = {
            "language": model.language_model,
            "slots": self.slots,
            "tower": model.vision_tower,
            "heads": self.heads,
        }
        known |= {"projector": model.multi_modal_projector}
        found = load_file(folder / _CHECKPOINT)
        for name, module in known.items():
            weights = {
                key.removeprefix(f"{name}."): value for key, value in found.items() if key.startswith(f"{name}.")
            }
            if weights:
                module.load_state_dict(weights)

    def save(self) -> None:
        """Write a checkpoint, and after the last stage a model folder."""
        self.args.output.mkdir(parents=True, exist_ok=True)
        weights = {
            f"{name}.{key}": value
            for name, module in self._modules().items()
            for key, value in module.state_dict().items()
        }
        part = self.args.output / f"{_CHECKPOINT}.part"
        save_file(weights, part)
        part.replace(self.args.output / _CHECKPOINT)
        if self.args.stage == "joint":
            save(self.mean, self.tokenizer, self.args.output / "model", torch.float16)

    def save_progress(self, clock: Clock) -> None:
        """Write what `--resume` needs; a run that is killed while it writes leaves the file of before."""
        parts = self._modules() | ({} if self.mean is None else {"mean": self.mean})
        tensors = {
            f"{name}.{key}": value.clone()  # tied weights are written twice
            for name, module in parts.items()
            for key, value in module.state_dict().items()
        }
        part = self.args.output / f"{_PROGRESS}.part"
        save_file(tensors, part, {"seconds": str(clock.seconds), "step": str(clock.step)})
        part.replace(self.args.output / _PROGRESS)

    def load_progress(self) -> Clock:
        """Return the clock of the run that `--output` holds, after its weights were loaded; what optimizers remember begins again."""
        with safe_open(self.args.output / _PROGRESS, "pt") as file:
            tensors, told = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
        for name, module in (self._modules() | ({} if self.mean is None else {"mean": self.mean})).items():
            own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
            module.load_state_dict(own)
        return Clock(self.args.minutes, self.args.warmup, float(told["seconds"]), int(told["step"]))

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        stage = self.args.stage
        if stage == "reader":
            features = self.slots(batch.slots)
            if self.args.blur:
                features = features + self.args.blur * features.detach().std() * torch.randn_like(features)
            return text_loss(text_logits(self.network, batch, features), batch)
        hidden = tower_output(self.network, batch.pixels)
        loss = tower_loss(self.heads(hidden.detach() if self.is_new_head else hidden), batch.slots)
        if self.args.reader is None and stage == "tower":
            return loss
        features = self.network.model.multi_modal_projector(hidden)
        if self.has_slots:
            wanted = self.slots(batch.slots).detach()
            loss = loss + functional.mse_loss(features, wanted) / wanted.var()
        if stage == "tower":
            return loss
        return text_loss(text_logits(self.network, batch, features), batch) + self.args.auxiliary * loss

    def dense_loss(self) -> Tensor:
        """Return the loss of the tower on `--dense` pictures full of text: a seventh of the cost of as many records."""
        documents = [self.source.draw_dense() for _ in range(self.args.dense)]
        pictures = torch.from_numpy(np.stack([document.picture for document in documents])).float()
        slots = torch.from_numpy(np.stack([document.slots for document in documents]))
        hidden = tower_output(self.network, ((pictures / 255 - MEAN) / DEVIATION)[:, None].expand(-1, 3, -1, -1))
        return tower_loss(self.heads(hidden.detach() if self.is_new_head else hidden), slots)

    @torch.inference_mode()
    def look(self) -> dict[str, Any]:
        """Return what is right on held-out documents: shares of characters, or of whole answers by their kind."""
        found: dict[str, Any] = {}
        network = self.network if self.mean is None else self.mean
        for name, batches in self.looks.items():
            right, total = Counter[str](), Counter[str]()
            for batch in batches:
                if self.has_pictures:
                    hidden = tower_output(network, batch.pixels)
                    guesses, is_character = self.heads(hidden).argmax(-1), batch.slots > 0
                    right["slots"] += int((guesses == batch.slots)[is_character].sum())
                    total["slots"] += int(is_character.sum())
                if self.args.stage == "tower":
                    continue
                features = network.model.multi_modal_projector(hidden) if self.has_pictures else self.slots(batch.slots)
                hits = (text_logits(network, batch, features).argmax(-1) == batch.labels) | (
                    batch.weights == KEY_WEIGHT
                )
                answers: dict[tuple[int, int, str], bool] = {}
                for key, hit in zip(batch.names, hits.tolist(), strict=True):
                    answers[key] = answers.get(key, True) and hit
                right["characters"] += int(hits.sum())
                total["characters"] += len(hits)
                for (_, _, kind), hit in answers.items():
                    right[kind] += hit
                    total[kind] += 1
            found[name] = {kind: round(right[kind] / total[kind], 3) for kind in total}
        return found

    def train(self) -> None:
        """Train by the clock; look now and then."""
        args, stage = self.args, self.args.stage
        modules = {name: module for name, module in self._modules().items() if stage != "joint" or name != "slots"}
        optimizers: list[Any] = optimizers_of(modules, args.lr)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        if stage == "joint":
            self.mean = deepcopy(self.network)
        clock = self.load_progress() if args.resume else Clock(args.minutes, args.warmup)
        looked, total, count = time.monotonic(), 0.0, 0
        while True:
            progress = clock.progress
            self.is_new_head &= clock.step < args.warmup
            for group in groups:
                group["lr"] = group.setdefault("highest", group["lr"]) * clock.factor()
            loss = self.loss(batch_of([self._document() for _ in range(args.batch)], self.tokenizer))
            if args.dense:
                loss = loss + self.dense_loss()
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], 1.0)
            for optimizer in optimizers:
                optimizer.step()
            clock.step += 1
            if self.mean is not None:
                self._average(min(args.decay, (clock.step + 1) / (clock.step + 10)))
            total, count = total + loss.item(), count + 1
            if clock.step % args.log_steps == 0:
                print(
                    f"{clock.seconds:6.0f} s  step {clock.step:6d}  loss {total / count:.4f}  cpu {time.process_time():.0f} s",
                    flush=True,
                )
                total, count = 0.0, 0
            if progress >= 1 or time.monotonic() - looked > 60 * args.look:
                self.save()
                self.save_progress(clock)
                print(json.dumps(self.look()), flush=True)
                looked = time.monotonic()
            if progress >= 1:
                return

    def _document(self) -> Document:
        is_dense = self.args.stage == "tower" and self._rng.random() < DENSE_SHARE
        return self.source.draw_dense() if is_dense else self.source.draw(self.has_pictures)

    @torch.no_grad()
    def _average(self, decay: float) -> None:
        for kept, current in zip(self.mean.parameters(), self.network.parameters(), strict=True):
            kept.lerp_(current, 1 - decay)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("reader", "tower", "joint"))
    parser.add_argument("--fonts", type=Path, required=True, help="folder with font files, at any depth")
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoints and the final model")
    parser.add_argument("--reader", type=Path, help="folder of a reader to go on from")
    parser.add_argument("--tower", type=Path, help="folder of a tower to go on from, or of a joint model")
    parser.add_argument("--from", dest="begin", type=Path, help="folder of a model to go on from in `joint`")
    parser.add_argument("--resume", action="store_true", help="go on with the run whose files are in --output")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long to train (default: 20)")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate (default: 0.002)")
    parser.add_argument("--warmup", type=int, default=100, help="steps of rising learning rate (default: 100)")
    parser.add_argument("--batch", type=int, default=8, help="pictures of a batch (default: 8)")
    parser.add_argument(
        "--dense",
        type=int,
        default=0,
        help="pictures full of text that `joint` adds to a batch for the tower (default: 0)",
    )
    parser.add_argument("--blur", type=float, default=0.1, help="noise of the reader's patches (default: 0.1)")
    parser.add_argument(
        "--auxiliary", type=float, default=0.3, help="weight of the tower's losses in `joint` (default: 0.3)"
    )
    parser.add_argument(
        "--decay", type=float, default=0.998, help="decay of the running mean of the weights (default: 0.998)"
    )
    parser.add_argument("--log-steps", type=int, default=50, help="steps between lines of the log (default: 50)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--look", type=float, default=3.0, help="minutes between looks and checkpoints (default: 3)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    Run(args).train()


if __name__ == "__main__":
    main()
