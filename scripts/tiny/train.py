"""Train the bundled model: its tokenizer, then a small Llama, on the text that `corpus` makes.

Run from the repository's root: `python -m scripts.tiny.train --output DIR --minutes 60`. The schedule follows the clock, so a
slow machine trains less and still ends in time. Every checkpoint is a complete model folder; `--resume DIR` goes on from one
(with fresh optimizer moments). A document is one message with several continuations: each sees the message and itself, never
another, so that the message is read once. The loss counts the generated pieces; after the last token of a piece the target is
the end token, while the input goes on with the next appended text, as the library's chains do.

On a GPU (`--device cuda --workers 13 --tokens 32768 --bfloat16`) processes draw the text, and a step of 32,768 tokens takes some
12 ms. The weights that are saved are a running mean of those that are trained.
"""

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from scripts.tiny.chats import END, TEMPLATE, TURN_TOKENS
from scripts.tiny.corpus import CURRENCIES
from scripts.tiny.documents import Document, Piece
from scripts.tiny.mixture import documents

VOCAB_SIZE = 1280
MAX_POSITIONS = 2048
KEY_WEIGHT = 0.1
"""Weight of the tokens inside a key: the schema forces them, but text without a schema should still look like a record."""
CODE_WEIGHT = 6.0
"""Weight of a currency's code: one token per record, whose rule is learned late when it counts like any letter of a name."""
KIND_WEIGHT = 4.0
"""Weight of a kind, for the same reason."""
FIRST_WEIGHT = 2.0
"""Weight of the first token of a value: where it stands in the message is decided there."""
SPLIT_SHARE = 0.06
"""Share of records whose punctuation is spelled with shorter tokens, as forced text may be."""
START_SPLIT_SHARE = 0.2
"""Share of texts that begin with a quotation mark of its own, as where the model would have written null and may not; empty ones all do.

The quotation mark is learned, the colon before it is not: which of the two spellings comes is a coin's choice."""
PIECES = r"\s+|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+ ?"
"""Spaces stand alone, so that a word is spelled with the same tokens after a space and after a quotation mark."""

_KEY = re.compile(r'"(\w+)":')
_PUNCTUATION = re.compile(r'["{}\[\]:,]{2,}')
_VALUE_START = re.compile(r'":\[?\{?"?')
_VALUE_END = re.compile(r'"?(,"|\}+|\},"|\}\},")')


def train_tokenizer(num_documents: int = 12_000) -> Tokenizer:
    """Return a byte-level BPE tokenizer of `VOCAB_SIZE` tokens, id 0 the end token, digits one by one, and the turn tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    source = documents(random.Random("tokenizer"))
    texts = (
        text
        for document in (next(source) for _ in range(num_documents))
        for text in (document.prompt, *(part for branch in document.branches for piece in branch for part in piece[:2]))
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([*TURN_TOKENS])
    return tokenizer


@dataclass(slots=True)
class Encoded:
    """A document as ids: the message, then its branches. All lists have one length.

    Args:
        ids: Token ids.
        branch: 0 for the message, 1, 2, ... for the branches.
        positions: Positions; every branch starts where the message ends.
        labels: The token that should follow; -1 where nothing is learned.
        weights: Weight of the label in the loss.
        fields: (branch, piece, field) of the label, numbered over the document; for measuring.
    """

    ids: list[int]
    branch: list[int]
    positions: list[int]
    labels: list[int]
    weights: list[float]
    fields: list[tuple[int, int, int]]


class Encoder:
    """Turns documents into ids, each segment by itself as the library does."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random | None) -> None:
        self._tokenizer = tokenizer
        self._rng = rng

    def encode(self, document: Document) -> Encoded:
        """Return the document as ids; punctuation is respelled at random when an rng was given."""
        prompt = self._tokenizer.encode(document.prompt).ids
        size = len(prompt)
        out = Encoded(prompt, [0] * size, list(range(size)), [-1] * size, [0.0] * size, [(0, 0, 0)] * size)
        for number, pairs in enumerate(document.branches, 1):
            start = len(out.ids)
            for place, piece in enumerate(pairs):
                self._add(out, piece, (number, place))
            length = len(out.ids) - start
            out.branch += [number] * length
            out.positions += range(size, size + length)
        return out

    def _add(self, out: Encoded, piece: Piece, place: tuple[int, int]) -> None:
        before = self._tokenizer.encode(piece.appended).ids
        ids, weights, fields = self._piece(piece.text)
        if piece.name in ("kind", "chat kind"):
            weights = [KIND_WEIGHT] * len(ids)
        out.ids += before + ids
        out.labels += [-1] * (len(before) - 1) + ids + [0]
        out.weights += [0.0] * (len(before) - 1) + weights + [1.0]
        last = fields[-1]
        out.fields += [(0, 0, 0)] * (len(before) - 1) + [(*place, field) for field in (*fields, last)]

    def _piece(self, text: str) -> tuple[list[int], list[float], list[int]]:
        encoding = self._tokenizer.encode(text)
        ids, weights, fields = [], [], []
        keys = [match.span() for match in _KEY.finditer(text)]
        starts = {match.end() for match in _VALUE_START.finditer(text)}
        respell = self._rng is not None and self._rng.random() < SPLIT_SHARE
        field = 0
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            while field < len(keys) and keys[field][0] <= start:
                field += 1
            in_key = field > 0 and keys[field - 1][0] < start and end <= keys[field - 1][1] - 2
            spelled = [token_id]
            if (
                respell
                and self._rng is not None
                and _PUNCTUATION.fullmatch(text[start:end])
                and self._rng.random() < 0.5
            ):
                spelled = [i for character in text[start:end] for i in self._tokenizer.encode(character).ids]
            is_start = text[start:end] == '":"'
            is_empty = is_start and text[end : end + 1] == '"'
            if is_start and self._rng is not None and (is_empty or self._rng.random() < START_SPLIT_SHARE):
                spelled = [i for part in ('":', '"') for i in self._tokenizer.encode(part).ids]
            ids += spelled
            weight = KEY_WEIGHT if in_key else CODE_WEIGHT if text[start:end] in CURRENCIES else 1.0
            weight = FIRST_WEIGHT if weight == 1.0 and start in starts else weight
            weights += [0.0] * (len(spelled) - 1) + [weight if len(spelled) == 1 or is_start else 0.0]
            fields += [field] * len(spelled)
        return ids, weights, fields


@dataclass(slots=True)
class Batch:
    """Encoded documents as tensors, right-padded to a multiple of 16: ids, positions and branches (B, T) int64; for the N labelled
    positions their places in the flattened batch (N,) int64, labels (N,) int64 and weights (N,) float32."""

    ids: Tensor
    positions: Tensor
    branch: Tensor
    places: Tensor
    labels: Tensor
    weights: Tensor

    def mask(self) -> Tensor:
        """Where a position may look, (B, 1, T, T) bool: at the message and at its own branch, and at nothing that comes after it."""
        length = self.ids.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=self.ids.device).tril()
        same = self.branch[:, None, :] == self.branch[:, :, None]
        return ((same | (self.branch == 0)[:, None, :]) & before)[:, None]

    def to(self, device: str) -> "Batch":
        """Return the batch on a device."""
        return Batch(*(getattr(self, name).to(device, non_blocking=True) for name in self.__slots__))

    def pin_memory(self) -> "Batch":
        """Return the batch in memory that a GPU reads by itself; the loader asks for it."""
        return Batch(*(getattr(self, name).pin_memory() for name in self.__slots__))


def collate(rows: list[Encoded]) -> Batch:
    """Return documents as one batch."""
    length = -(-max(len(row.ids) for row in rows) // 16) * 16

    def padded(name: str, fill: float) -> numpy.ndarray:
        out = numpy.full((len(rows), length), fill, numpy.float32 if name == "weights" else numpy.int64)
        for values, row in zip(out, rows, strict=True):
            values[: len(row.ids)] = getattr(row, name)
        return out

    labels = padded("labels", -1)
    (places,) = numpy.nonzero(labels.reshape(-1) >= 0)
    arrays = [padded("ids", 0), padded("positions", 0), padded("branch", -1), places]
    arrays += [padded(name, 0).reshape(-1)[places] for name in ("labels", "weights")]
    return Batch(*map(torch.from_numpy, arrays))


def drill(rng: random.Random) -> Encoded:
    """Return a row of random tokens and the same row again, which has to be copied.

    Copying is the skill that records need, and a rare signal in them: without drills the loss stays on a plateau for long.
    """
    size = rng.randint(8, 48)
    ids = rng.sample(range(1, VOCAB_SIZE), size)
    labels = [-1] * size + ids[1:] + [0]
    weights = [0.0] * size + [1.0] * size
    return Encoded(ids + ids, [0] * size + [1] * size, list(range(2 * size)), labels, weights, [(0, 0, 0)] * (2 * size))


def training_rows(encoder: Encoder, rng: random.Random, drill_share: Callable[[], float]) -> Iterator[Encoded]:
    """Yield documents, and drills in the share that holds at the moment."""
    source = documents(rng)
    while True:
        yield drill(rng) if rng.random() < drill_share() else encoder.encode(next(source))


def batches(source: Iterable[Encoded], num_tokens: int, pool_size: int = 256) -> Iterator[list[Encoded]]:
    """Yield lists of documents of similar length, at most `num_tokens` tokens with padding, in drawn order."""
    rng = random.Random(0)
    pool: list[Encoded] = []
    for row in source:
        pool.append(row)
        if len(pool) < pool_size:
            continue
        pool.sort(key=lambda row: len(row.ids))
        groups: list[list[Encoded]] = [[]]
        for row in pool:
            if groups[-1] and (len(groups[-1]) + 1) * len(row.ids) > num_tokens:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        yield from groups
        pool = []


def make_model() -> LlamaForCausalLM:
    """Return the untrained model: 4 layers of width 192, 1.87 M parameters."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE + len(TURN_TOKENS),
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=3,
            max_position_embeddings=MAX_POSITIONS,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=None,
        )
    )


def use_fused_norms(model: LlamaForCausalLM) -> None:
    """Replace the norms of `model` by PyTorch's, in place, with the same weights: a step is 8 % faster on a CPU."""
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, LlamaRMSNorm):
                fused = nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon)
                fused.weight = module.weight
                setattr(parent, name, fused)


def logits_of(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Return logits (N, V) float32 of the labelled positions."""
    hidden: Tensor = model.model(
        input_ids=batch.ids, attention_mask=batch.mask(), position_ids=batch.positions, use_cache=False
    ).last_hidden_state
    return functional.linear(hidden.flatten(0, 1)[batch.places], model.lm_head.weight)


@torch.no_grad()
def measure(model: LlamaForCausalLM, tokenizer: Tokenizer, num_documents: int, seed: str) -> dict[str, Any]:
    """Return shares of right fields, records, kinds and due dates on held-out documents, each token given the right past.

    A quick look for the log, not the published figures (`evaluate.py` makes those through the library). A wrong choice
    between the marks that the schema forces counts as right.
    """
    model.train(False)
    names = [tokenizer.id_to_token(i) or "" for i in range(tokenizer.get_vocab_size())]
    ends = {i: name[0] == '"' for i, name in enumerate(names) if _VALUE_END.fullmatch(name)}
    encoder, source = Encoder(tokenizer, None), documents(random.Random(seed), held_out=True)
    hits: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    wrong_keys: Counter[str] = Counter()
    docs = sorted((next(source) for _ in range(num_documents)), key=lambda d: len(d.prompt))
    for begin in range(0, len(docs), 16):
        part = docs[begin : begin + 16]
        rows = [encoder.encode(document) for document in part]
        batch = collate(rows).to(str(model.device))
        guesses = torch.full_like(batch.ids, -1)
        guesses.view(-1)[batch.places] = logits_of(model, batch).argmax(-1)
        for document, row, guess in zip(part, rows, guesses.tolist(), strict=True):
            wrong: dict[tuple[int, int], set[int]] = {}
            for label, got, weight, (number, place, field) in zip(
                row.labels, guess, row.weights, row.fields, strict=False
            ):
                right = got == label or (label in ends and ends.get(got) == ends[label])
                if label >= 0 and weight >= 1.0 and not right:
                    wrong.setdefault((number, place), set()).add(field)
            for number, pieces in enumerate(document.branches, 1):
                for place, piece in enumerate(pieces):
                    bad, keys = wrong.get((number, place), set()), _KEY.findall(piece.text)
                    if keys:
                        counts[piece.name + "_fields"] += len(keys)
                        hits[piece.name + "_fields"] += len(keys) - len(bad)
                        wrong_keys.update(keys[field - 1] for field in bad)
                    counts[piece.name] += 1
                    hits[piece.name] += not bad
    model.train()
    shares = {name: round(hits[name] / counts[name], 4) for name in sorted(counts)}
    return {**shares, "wrong": dict(wrong_keys.most_common(12))}


def with_turn_tokens(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """Give a model without them the turn tokens of chats, in place: new rows of the embedding, its mean and a little noise."""
    size = model.config.vocab_size
    tokenizer.add_special_tokens([*TURN_TOKENS])
    if tokenizer.get_vocab_size() == size:
        return
    model.resize_token_embeddings(tokenizer.get_vocab_size(), mean_resizing=False)
    with torch.no_grad():
        table = model.model.embed_tokens.weight
        noise = torch.randn_like(table[size:]) * table[:size].std(0)
        table[size:] = table[:size].mean(0) + noise


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a complete model folder: weights, configuration, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(eos_token_id=0)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False, model_max_length=MAX_POSITIONS
    )
    wrapped.add_special_tokens({"additional_special_tokens": [*TURN_TOKENS]})
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)


class Batches(IterableDataset[Batch]):
    """The training text as batches without end; each process of a loader draws its own.

    Args:
        tokenizer: The tokenizer.
        seed: What the text is drawn from.
        num_tokens: Tokens of a batch, with padding.
        drill_minutes: For how long to mix in rows to be copied.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int, num_tokens: int, drill_minutes: float) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._num_tokens = num_tokens
        self._drill_minutes = drill_minutes

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        rng = random.Random(f"train {self._seed} {worker.id if worker else 0}")
        started = time.monotonic()

        def drill_share() -> float:
            minutes = (time.monotonic() - started) / 60
            return max(0.0, 0.9 * (1 - minutes / self._drill_minutes)) if self._drill_minutes else 0.0

        rows = training_rows(Encoder(self._tokenizer, rng), rng, drill_share)
        yield from map(collate, batches(rows, self._num_tokens, max(256, self._num_tokens // 20)))


def train(args: argparse.Namespace) -> None:
    """Run the training that the command line asks for."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    if args.resume:
        tokenizer = Tokenizer.from_file(str(args.resume / "tokenizer.json"))
        model = LlamaForCausalLM.from_pretrained(args.resume, dtype=torch.float32)
        with_turn_tokens(model, tokenizer)
    else:
        tokenizer, model = train_tokenizer(), make_model()
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}), flush=True)
    use_fused_norms(model)
    model.to(args.device).train()
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(args.decay))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.05, fused=True)
    text = Batches(tokenizer, args.seed, args.tokens, args.drill_minutes)
    loader = DataLoader(
        text,
        batch_size=None,
        num_workers=args.workers,
        pin_memory=args.device != "cpu",
        prefetch_factor=8 if args.workers else None,
    )
    started = looked = time.monotonic()
    total, seen = torch.zeros((), device=args.device), 0
    for step, batch in enumerate(loader, 1):
        elapsed = time.monotonic() - started
        progress = args.from_progress + (1 - args.from_progress) * elapsed / (60 * args.minutes)
        factor = min(1.0, step / args.warmup) * max(0.01, 1 - progress)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * factor
        seen += batch.ids.numel()
        batch = batch.to(args.device)
        with torch.autocast(torch.device(args.device).type, torch.bfloat16, enabled=args.bfloat16):
            logits = logits_of(model, batch)
        losses = functional.cross_entropy(logits.float(), batch.labels, reduction="none")
        loss = (losses * batch.weights).sum() / batch.weights.sum()
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean.update_parameters(model)
        total += loss.detach()
        if step % args.log_steps == 0:
            print(
                f"{elapsed:6.0f} s  step {step:6d}  {seen / 1e6:7.1f} M tokens  loss {total.item() / args.log_steps:.4f}  "
                f"lr {args.lr * factor:.5f}",
                flush=True,
            )
            total.zero_()
        if progress >= 1 or time.monotonic() - looked > 60 * args.look:
            save(mean.module, tokenizer, args.output)
            print(json.dumps(measure(mean.module, tokenizer, 240, "log")), flush=True)
            looked = time.monotonic()
        if progress >= 1:
            return


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoints and the final model")
    parser.add_argument("--resume", type=Path, help="folder of a checkpoint to go on from")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to train (default: 60)")
    parser.add_argument("--lr", type=float, default=3e-3, help="highest learning rate (default: 0.003)")
    parser.add_argument(
        "--from-progress", type=float, default=0.0, help="where the schedule starts, 0 to 1 (default: 0)"
    )
    parser.add_argument("--warmup", type=int, default=100, help="steps of rising learning rate (default: 100)")
    parser.add_argument("--drill-minutes", type=float, default=6.0, help="how long to mix in copying (default: 6)")
    parser.add_argument("--tokens", type=int, default=5000, help="tokens of a batch (default: 5000)")
    parser.add_argument("--bfloat16", action="store_true", help="multiply in bfloat16: faster where the CPU has AMX")
    parser.add_argument("--device", default="cpu", help="where to train, such as cuda (default: cpu)")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that draw the text (default: 0, this one does)"
    )
    parser.add_argument(
        "--decay", type=float, default=0.999, help="decay of the running mean of the weights (default: 0.999)"
    )
    parser.add_argument("--log-steps", type=int, default=50, help="steps between lines of the log (default: 50)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--look", type=float, default=3.0, help="minutes between checkpoints (default: 3)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
