"""The tree of completions: its shape and cost, each leaf against a run of its own, and its pictures."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from outlines_cont import CompletionTree, models, samplers
from outlines_cont.cli.__main__ import app
from outlines_cont.cli.program import show_growing
from outlines_cont.conversation.tree import TreeNode, shown, to_html, to_svg, to_text
from outlines_cont.errors import OptionError
from outlines_cont.kv.share import Sharing
from outlines_cont.models import HuggingFaceModel
from outlines_cont.sampling.random_stream import RandomStream
from tests.fakes import FakeTokenizer, random_model, random_network
from tests.oracle import next_logits

PROMPT = "Not many people know that"


def grown(model: HuggingFaceModel, **options: object) -> CompletionTree:
    tree = CompletionTree(model, PROMPT, **options)  # type: ignore[arg-type]
    for _ in tree.grow():
        pass
    return tree


def alone(model: HuggingFaceModel, path: tuple[int, ...], depth: int, every: int, seed: int) -> list[int]:
    """The ids of one completion, without a cache and without a batch."""
    stream = RandomStream(seed).open()
    ids = model.tokenizer.encode(PROMPT, add_special_tokens=True)
    start = len(ids)
    refused = [i for i, data in enumerate(model.tokenizer.token_bytes) if not data or i in model.eos_token_ids]
    for step in range(depth):
        if step and step % every == 0:
            stream = stream.close().fork(path[step // every - 1]).open()
        logits = next_logits(model, ids)[-1:].clone()
        logits[:, refused] = -torch.inf
        uniforms = torch.tensor([stream.draw()], dtype=torch.float64)
        ids.append(int(samplers.multinomial().sample(logits, uniforms)[0]))
    return ids[start:]


def test_the_tree_of_the_example_has_sixteen_leaves_in_seventy_two_forwards() -> None:
    model = random_model()
    model.capabilities
    with model.meter() as meter:
        tree = grown(model)

    def lengths(node: TreeNode) -> list[int]:
        return [len(node.token_ids), *(lengths(node.children[0]) if node.children else [])]

    assert (meter.forwards, meter.sampled_tokens, tree.num_sampled) == (72, 368, 368)
    assert len(tree.leaves) == 16
    assert lengths(tree.root) == [16, 16, 16, 16, 8]
    assert {len(leaf.path) for leaf in tree.leaves} == {4}
    prompt = model.tokenizer.encode(PROMPT, add_special_tokens=True)
    # Nothing is fed twice: the prompt, and every sampled token but the last of each leaf.
    assert len(prompt) + 368 - 16 == meter.fed_tokens
    assert meter.recomputed_tokens == 0


@pytest.mark.parametrize("seed", [0, 5])
def test_each_leaf_is_a_run_of_its_own(seed: int) -> None:
    model = random_model()
    tree = grown(model, depth=11, every=3, seed=seed)
    assert len(tree.leaves) == 8
    for leaf in tree.leaves:
        ids = alone(model, leaf.path, 11, 3, seed)
        assert ids == tree.token_ids(leaf)
        assert model.tokenizer.decode([*model.tokenizer.encode(PROMPT), *ids]) == tree.text(leaf)
    assert len({tree.text(leaf) for leaf in tree.leaves}) == 8


def test_what_leaves_have_in_common_is_held_once() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    with mock.patch("outlines_cont.kv.batch.SHARING", Sharing(min_copies=1, min_view=1)):
        tree = grown(model, depth=40, every=10)
    per_token = 2 * 2 * 2 * 8 * 8
    logits = 8 * 351 * 8
    stretches = len(model.tokenizer.encode(PROMPT)) + 10 + 2 * 10 + 4 * 10 + 8 * 10
    # A buffer grows with at least 16 spare columns per row; there are 1 + 2 + 4 + 8 rows.
    assert tree.kv_bytes - logits <= (stretches + 15 * 24) * per_token
    assert model.kv_store.nbytes == model.prefix_cache.nbytes, "nothing but what the cache holds"


def test_distinct_twins_begin_with_different_tokens() -> None:
    greedy = samplers.greedy()
    same = grown(random_model(), depth=9, every=2, sampler=greedy)
    apart = grown(random_model(), depth=9, every=2, sampler=greedy, distinct=True)

    def pairs(node: TreeNode) -> list[bool]:
        if not node.children:
            return []
        first, second = node.children
        return [first.token_ids[0] == second.token_ids[0], *pairs(first), *pairs(second)]

    assert pairs(same.root) == [True] * 15
    assert pairs(apart.root) == [False] * 15


@pytest.mark.parametrize("options", [{"depth": 0}, {"every": 0}, {"depth": True}, {"depth": 72, "every": 1}])
def test_a_tree_without_a_sensible_size_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="expected"):
        CompletionTree(random_model(), PROMPT, **options)  # type: ignore[arg-type]


def hostile() -> CompletionTree:
    tree = CompletionTree(random_model(), "<script>alert('x')</script> & [red]bold[/red]")
    left = TreeNode((0,), [1], "a\nb\t\x1b[2J\x00\u202e]]>")
    right = TreeNode((1,), [1], "<!-- \ufffe \ud800" + "w" * 80)
    tree.root = TreeNode((), [1], "</svg><b>", [left, right])
    return tree


def test_text_shows_the_tree_with_box_characters_and_obeys_nothing() -> None:
    assert to_text(hostile()).splitlines() == [
        "<script>alert('x')</script> & [red]bold[/red]",
        "└── </svg><b>",
        "    ├── a↵b→�[2J���]]>".replace("���", "��"),
        "    └── <!-- � �" + "w" * 80,
    ]
    assert shown("a\u200db\u2028") == "a\u200db�"


def test_pictures_are_well_formed_whatever_a_model_writes() -> None:
    svg = ElementTree.fromstring(to_svg(hostile()))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "<script>alert('x')</script> & [red]bold[/red]"
    assert "w" * 80 in "".join(filter(None, texts))
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) == 2
    assert not list(svg.iter("{http://www.w3.org/2000/svg}script"))
    page = to_html(hostile())
    assert "<script" not in page
    assert page.count("<li>") == page.count("</li>") == 3
    assert "\x1b" not in page
    to_svg(hostile()).encode()
    page.encode()


def test_lines_of_the_picture_do_not_overlap() -> None:
    svg = ElementTree.fromstring(to_svg(grown(random_model(), depth=9, every=2)))
    places = [(int(e.get("x", 0)), int(e.get("y", 0))) for e in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert len(places) == len(set(places))
    height = int(svg.get("height", 0))
    for column in {x for x, _ in places}:
        lines = sorted(y for x, y in places if x == column)
        assert all(below - above >= 16 for above, below in itertools.pairwise(lines))
        assert 0 < lines[0] < lines[-1] + 1 <= height


def test_on_a_terminal_the_tree_grows_and_stays() -> None:
    console = Console(force_terminal=True, width=60, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    tree = CompletionTree(random_model(), PROMPT, depth=5, every=2)
    with console.file:
        show_growing(tree, console)
    assert console.export_text().count("└── ") >= 4


def test_the_command_prints_the_tree_and_writes_pictures(tmp_path: Path) -> None:
    command = ["tree", "Message: Hello", "--depth", "10", "--every", "4", "--distinct", "--seed", "3"]
    first = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "tree.svg")])
    second = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "tree.html")])

    assert (first.exit_code, second.exit_code) == (0, 0), first.output
    lines = first.stdout.splitlines()
    assert lines[0] == "Message: Hello"
    assert lines[:8] == second.stdout.splitlines()[:8]
    assert sum("── " in line for line in lines) == 7
    assert re.match(r"4 leaves, 20 tokens sampled in 10 forwards \(one by one: 40\)", lines[8])
    ElementTree.parse(tmp_path / "tree.svg")
    assert "<ul>" in (tmp_path / "tree.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "options",
    [[""], ["--output", "tree.png"], ["--model", "/no/such/folder"], ["--depth", "99", "--every", "1"]],
)
def test_what_cannot_be_done_is_one_line(options: list[str]) -> None:
    result = CliRunner().invoke(app, ["tree", *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["tree", "--depth", "2", "--output", str(tmp_path / "no" / "tree.svg")])
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert json.dumps(result.stderr).count("\\n") == 1
