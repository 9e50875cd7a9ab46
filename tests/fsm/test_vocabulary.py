"""Vocabularies: the disk cache, where what is damaged is built anew, and the memory that constraints share, bounded in bytes."""

from __future__ import annotations

import gc
import os
import pickle
import random
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm import TokenFSM, Vocabulary, choice, json_schema, regex, trie
from fsm.terms.node import memory
from fsm.tokens.cache import ByteCache
from fsm.tokens.vocabulary import FORMAT, SUFFIX, fingerprint, write
from fsm.trie import Trie
from tests.terms import num_terms

WORDS = [b'"' + bytes((97 + i % 26, 97 + i // 26)) for i in range(40)] + [
    b'", "', b'a", "b', b"\xc3\xa9t", b"\0", b"\0\0",
]  # fmt: skip
TOKENS = [None, *(bytes((b,)) for b in range(256)), *WORDS, b"", b"a", None, b"</s>"]
EOS = [0, len(TOKENS) - 1]
ARRAYS = ["order", "ends", "byte", "parent", "first_child", "num_children", "first_text", "num_texts", "num_ends"]


def make(folder: Path, tokens: list[bytes | None] = TOKENS, max_disk_bytes: int = 1 << 20) -> Vocabulary:
    return Vocabulary(tokens, EOS, cache_dir=folder, max_disk_bytes=max_disk_bytes)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def masks(vocabulary: Vocabulary) -> list[list[int]]:
    """The masks along a text, with strings that are entered and left in the middle of tokens."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string", "maxLength": 3}}}
    fsm, found = TokenFSM(json_schema(schema), vocabulary), []
    state = fsm.initial_state
    for byte in b'{"a": "x\\n", "b": "zz"}':
        found.append(fsm.allowed_token_ids(state).tolist())
        state = fsm.next_state(state, byte + 1)
    return [*found, fsm.allowed_token_ids(state).tolist()]


def assert_same(left: Vocabulary, right: Vocabulary) -> None:
    assert left.tokens == right.tokens
    assert left.max_token_bytes == right.max_token_bytes
    assert_same_trie(left.trie, right.trie)
    assert len(left._loops) == len(right._loops)
    assert left._loops.nbytes == right._loops.nbytes
    assert masks(left) == masks(right)


def assert_same_trie(left: Trie, right: Trie) -> None:
    for name in ARRAYS:
        one, other = getattr(left, name), getattr(right, name)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


def test_a_vocabulary_that_is_read_equals_one_that_is_built(tmp_path: Path) -> None:
    written = make(tmp_path / "new" / "folder")
    read = make(tmp_path / "new" / "folder")
    assert_same(Vocabulary(TOKENS, EOS), written)
    assert_same(written, read)


def test_the_second_time_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    monkeypatch.setattr("fsm.tokens.vocabulary.write", lambda *_: pytest.fail("it was built again"))
    make(tmp_path)


def test_other_tokens_and_other_ends_are_other_files(tmp_path: Path) -> None:
    make(tmp_path)
    make(tmp_path, [*TOKENS[:-2], b"x", b"</s>"])
    Vocabulary(TOKENS, [0], cache_dir=tmp_path)
    Vocabulary([*TOKENS[:3], b"".join(t or b"" for t in TOKENS[3:5]), b"", *TOKENS[5:]], EOS, cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_what_was_read_before_the_damage_is_forgotten(tmp_path: Path) -> None:
    wrong = {**make(tmp_path).trie.arrays(), "num_ends": np.zeros(3, np.uint8)}
    write(tmp_path, name_of_tokens(), wrong, 1 << 20)
    with pytest.warns(RuntimeWarning, match="damaged"):
        made = make(tmp_path)
    assert_same(Vocabulary(TOKENS, EOS), made)


class Trap:
    """Something that, unpickled, leaves a trace."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def with_checksum(body: bytes) -> bytes:
    return FORMAT + sha256(name_of_tokens().encode() + body).digest() + body


def damages(data: bytes, other: bytes) -> dict[str, bytes]:
    flipped = bytearray(data)
    flipped[-1] ^= 1
    return {
        "empty": b"",
        "truncated": data[:-100],
        "only a head": data[:20],
        "longer": data + b"\0",
        "a flipped bit": bytes(flipped),
        "another version": b"fsm vocabulary 0\n" + data[len(FORMAT) :],
        "a pickle": pickle.dumps(Trap()),
        "other tokens under this name": other,
        "no header": with_checksum(b"\xff" * 100),
        "a header that is no object": with_checksum((2).to_bytes(8, "little") + b"[]"),
        "a deep header": with_checksum((100_000).to_bytes(8, "little") + b"[" * 100_000),
        "an unknown type": with_checksum(header('{"trie/order": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}')),
        "a length beyond the end": with_checksum(header('{"order": {"dtype": "I32", "shape": [9], "data_offsets": [0, 36]}}')),
        "no arrays": with_checksum(header("{}")),
    }


def header(arrays: str) -> bytes:
    text = arrays.encode()
    return len(text).to_bytes(8, "little") + text


def name_of_tokens() -> str:
    spelled = [token or b"" for token in TOKENS[:-1]] + [b""]
    return fingerprint(spelled, np.array(list(map(len, spelled)), np.int32), EOS)


@pytest.mark.parametrize("damage", list(damages(b"x", b"")))
def test_a_damaged_file_is_made_anew_with_one_warning(tmp_path: Path, damage: str) -> None:
    make(tmp_path, [*TOKENS[:-1], b"</t>", b"</s>"])
    other = only_file(tmp_path)
    foreign = other.read_bytes()
    other.unlink()
    expected = make(tmp_path)
    path = only_file(tmp_path)
    assert path.name == name_of_tokens() + SUFFIX
    good = path.read_bytes()
    path.write_bytes(damages(good, foreign)[damage])
    with pytest.warns(RuntimeWarning, match="made anew") as caught:
        mended = make(tmp_path)
    assert len(caught) == 1
    assert_same(expected, mended)
    assert good == path.read_bytes()
    assert not Path("executed").exists()
    make(tmp_path)


@given(st.randoms(use_true_random=False))
def test_any_change_of_a_byte_is_noticed(tmp_path_factory: pytest.TempPathFactory, source: random.Random) -> None:
    folder = tmp_path_factory.mktemp("cache")
    make(folder)
    path = only_file(folder)
    data = bytearray(path.read_bytes())
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="made anew"):
        make(folder)


def test_the_folder_stays_below_its_size_and_what_was_unused_for_longest_goes(tmp_path: Path) -> None:
    variants = [[*TOKENS[:-1], bytes((65 + i,)) * 3, None, b"</s>"][-len(TOKENS) :] for i in range(4)]
    size = 0
    for i, tokens in enumerate(variants[:3]):
        make(tmp_path, tokens)
        size = max(path.stat().st_size for path in tmp_path.iterdir())
        newest = max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (i, i))
    make(tmp_path, variants[0])  # used just now
    make(tmp_path, variants[3], max_disk_bytes=2 * size + 100)
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fsm.tokens.vocabulary.write", lambda *_: pytest.fail("it was removed"))
        make(tmp_path, variants[0])
        make(tmp_path, variants[3])


def test_what_is_larger_than_the_folder_may_be_is_not_written(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="max_disk_bytes"):
        made = make(tmp_path, max_disk_bytes=1000)
    assert masks(Vocabulary(TOKENS, EOS)) == masks(made)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, not a folder", encoding="utf-8")
    with pytest.warns(RuntimeWarning, match="could not"):
        made = make(tmp_path / "file")
    assert masks(Vocabulary(TOKENS, EOS)) == masks(made)


def test_a_write_that_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", break_off)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, "name", {"a": np.arange(3)}, 1000)
    assert list(tmp_path.iterdir()) == []


def test_other_files_of_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x" * 5000)
    make(tmp_path, max_disk_bytes=20_000)
    assert (tmp_path / "notes.txt").exists()


def test_the_bytes_of_a_file_change_only_with_the_format(tmp_path: Path) -> None:
    make(tmp_path)
    found = FORMAT, sha256(only_file(tmp_path).read_bytes()).hexdigest()[:16]
    assert found == (b"fsm vocabulary 3\n", "ac9ba4afbde42ee6"), "count the version in FORMAT up"


PIECES = st.lists(st.sampled_from([b"\0", b"\0\0\0", b"a", b"b", b"abcdefg", b"\xff"]), max_size=5).map(b"".join)


@given(st.lists(PIECES, max_size=30))
def test_sorting_by_numpy_is_sorting(texts: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trie, "MIN_SORTED_BY_NUMPY", 0)
        built = Trie(texts)
    assert sorted(range(len(texts)), key=texts.__getitem__) == built.order.tolist()
    assert_same_trie(built, Trie(texts))
    assert_same_trie(built, Trie.from_arrays(built.arrays(), len(texts)))


LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAIRS = [(a + b).encode() for a in LETTERS for b in LETTERS + '",']
CACHE_TOKENS = [None, *(bytes((b,)) for b in range(256)), *PAIRS, *(b'"' + pair for pair in PAIRS[:200])]


def follow(token_fsm: TokenFSM, text: str) -> list[list[int]]:
    state, found = token_fsm.initial_state, []
    for byte in text.encode():
        found.append(token_fsm.allowed_token_ids(state).tolist())
        state = token_fsm.next_state(state, byte + 1)
    return found


def test_many_constraints_in_a_row_stay_below_the_cap() -> None:
    cap = 600_000
    vocabulary, source = Vocabulary(CACHE_TOKENS, [0], max_cache_bytes=cap), random.Random(0)
    gc.collect()
    most, terms = 0, num_terms()
    for number in range(40):
        names = ["".join(source.choices(LETTERS, k=8)) for _ in range(2)]
        letters = "".join(sorted(set(source.choices(LETTERS, k=20))))
        if number % 2:
            follow(TokenFSM(regex(f"{names[0]}[{letters}]{{2,9}}(, {names[1]})*"), vocabulary), names[0] + letters[:2])
        else:
            options = ["".join(source.choices(LETTERS, k=6)) for _ in range(100)]
            kinds = [{"enum": options}, {"type": "string", "maxLength": source.randint(2, 9)}]
            schema = {"type": "object", "properties": dict(zip(names, kinds, strict=True)), "required": names}
            text = f'{{"{names[0]}": "{options[0]}", "{names[1]}": "a'
            follow(TokenFSM(json_schema({**schema, "additionalProperties": False}), vocabulary), text)
        most = max(most, vocabulary.cache_nbytes)
    assert most <= cap
    gc.collect()
    assert 500 * (num_terms() - terms) < cap


def test_what_was_forgotten_is_made_again_and_is_the_same() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]}
    roomy, tight = (Vocabulary(CACHE_TOKENS, [0], max_cache_bytes=size) for size in (1 << 27, 1))
    text = '{"a": "xy'
    expected = follow(TokenFSM(json_schema(schema), roomy), text)
    assert expected == follow(TokenFSM(json_schema(schema), tight), text)
    before = roomy.masks.nbytes
    roomy.bound(0)
    follow(TokenFSM(regex("[b-d]{2,9}x"), roomy), "bc")
    assert roomy.masks.nbytes < before
    assert expected == follow(TokenFSM(json_schema(schema), roomy), text)


def test_terms_count_once_their_constraint_is_gone_and_until_its_masks_are() -> None:
    vocabulary = Vocabulary(CACHE_TOKENS, [0])
    expression = choice([a + b + c for a in LETTERS for b in LETTERS for c in "xyz"])
    terms = memory(expression.node)
    assert terms > 50 * 26 * 26 * 3
    token_fsm = TokenFSM(expression, vocabulary)
    follow(token_fsm, "abx")
    before = vocabulary.masks.nbytes
    del token_fsm
    assert before + terms == vocabulary.masks.nbytes
    again = TokenFSM(expression, vocabulary)
    follow(again, "ab")
    del again
    assert before + terms == vocabulary.masks.nbytes
    vocabulary.masks.clear()
    assert vocabulary.masks.nbytes == 0


def test_masks_of_large_terms_go_first_when_there_is_no_room_for_the_terms() -> None:
    vocabulary = Vocabulary(CACHE_TOKENS, [0], max_cache_bytes=200_000)
    for first in LETTERS:
        token_fsm = TokenFSM(choice([first + b + c for b in LETTERS for c in LETTERS]), vocabulary)
        follow(token_fsm, first + "a")
    del token_fsm
    assert vocabulary.masks.nbytes <= 100_000


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("pcgm"), st.integers(0, 6), st.integers(0, 40), st.sampled_from([None, "x", "y"])), max_size=40
)


@given(OPERATIONS, st.integers(1, 120))
def test_a_cache_counts_what_it_holds(operations: list[tuple[str, int, int, str | None]], cap: int) -> None:
    cache: ByteCache[int, object] = ByteCache(cap)
    for what, key, nbytes, owner in operations:
        if what == "p":
            value = object()
            assert cache.put(key, value, nbytes, owner) is value
            assert cache.get(key) in (value, None)
        elif what == "c" and owner is not None:
            cache.charge(owner, nbytes)
        elif what == "m":
            known, made = cache.get(key), object()
            assert cache.get_or_put(key, lambda made=made: made, nbytes) is (made if known is None else known)  # type: ignore[misc]
        else:
            cache.get(key)
        owners = {owner for _, _, owner in cache._entries.values()} - {None}
        assert owners == set(cache._owners)
        held = sum(nbytes for _, nbytes, _ in cache._entries.values())
        assert held + sum(nbytes for _, nbytes in cache._owners.values()) == cache.nbytes
        assert cache.nbytes <= cap or len(cache) <= 1


def test_clearing_forgets_owners_too() -> None:
    cache: ByteCache[str, np.ndarray] = ByteCache(100)
    cache.put("a", np.zeros(1), 10, owner="o")
    cache.charge("o", 50)
    cache.clear()
    assert (cache.nbytes, len(cache), cache.has_uncharged("o")) == (0, 0, False)


@pytest.mark.parametrize("text", ["abc", "x" * 500])
def test_the_memory_of_a_term_grows_with_it(text: str) -> None:
    assert memory(choice([text]).node) < memory(choice([text, "y" * 5000, "z"]).node)
