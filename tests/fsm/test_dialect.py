"""The dialect of llguidance: what its grammars accept, beside llguidance itself on random texts of both, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cache
from random import Random
from textwrap import dedent
from typing import Any

import pytest

import fsm
from fsm import Expression, GrammarError, grammar, special
from fsm.terms.special_token import divided
from tests.examples import examples
from tests.fuzz.languages import grammar_text
from tests.walks import random_text

try:
    import llguidance
    import llguidance.gbnf_to_lark
except ImportError:  # it is in the extra `bench`, not in that of the tests
    llguidance = None

NAMES = {256: "<|eos|>", 257: "<|tool|>", 258: "<think>", 259: "</think>"}

CALL = '{"type": "object", "properties": {"name": {"const": "add"}, "x": {"type": "integer"}}, "required": ["name", "x"]}'
PATCH = r"""
start: opening file_change+ closing
opening: "*** Begin Patch" LF
closing: "*** End Patch" LF?
file_change: added | deleted | updated
added: "*** Add File: " path LF new_line+
deleted: "*** Delete File: " path LF
updated: "*** Update File: " path LF moved? changes?
path: /(.+)/
new_line: "+" /(.*)/ LF -> line
moved: "*** Move to: " path LF
changes: (place | changed_line)+ last_line?
place: ("@@" | "@@ " /(.+)/) LF
changed_line: ("+" | "-" | " ") /(.*)/ LF
last_line: "*** End of File" LF
%import common.LF
"""
GRAMMARS = {
    "a schema among texts": f"start: TEXT | call\nTEXT: /[^{{](.|\\n)*/\ncall: %json {CALL}",
    "special tokens": r"""
        start: TEXT | search | compute
        TEXT: /[a-z ]*/
        search: <|tool|> "search(query=" STRING ")" <think>
        compute: <|tool|> "compute(query=" STRING ")"
        CHARACTER: /(\\([\"\\\/bfnrt]|u[a-fA-F0-9]{4})|[^\"\\\x00-\x1F\x7F])/
        STRING: "\"" CHARACTER* "\""
        """,
    "thoughts, then JSON": f'start: <think> "\\n" /(.|\\n)*/ </think> answer\nanswer: %json {CALL}',
    "calls in text": """
        start: (add | sub)* over
        over: TEXT
        TEXT: /(.|\\n)*/
        add_head[lazy]: TEXT "<f"
        add: add_head "=add>" %json {"type": "array", "items": {"type": "boolean"}, "maxItems": 2} "</f>"
        sub_head[lazy]: TEXT "<f"
        sub: sub_head "=sub>" /[0-9]+/ "</f>"
        """,
    "and, not": 'start: LINES "!"\nLINES: /[a-c \\n]*/ & ~/(?s:.*)\\n\\n(?s:.*)/',
    "and before or": 'start: A+ "."\nA: /[ab]{2}/ & ~"ab" | "c"{2,3} & /c+/ | ~"x" & /[xy]/ -> other',
    "substrings": 'start: A "-" B "-" %regex {"substring_words": "foo bar. baz"}\nA: %regex {"substring_chars": "ab c"}\n'
    'B: %regex {"substring_chunks": ["abc", "de", "", "fg"]}',
    "counts": 'start: a{2,3} "b"{,2} "c"{1} ("d" a){2,} [E] T\na: "a"\nE: "e"{2}\nT: "0".."9" "t"~1..2 "u"{3,}',
    "a suffix": 'start: (f ",")+ g\nf[suffix=END, capture]: "a" | /b+/ "c"\ng[suffix="..", capture="last"]: /[.x]*/\nEND: "!" | "?"',
    "names": 'start: my-rule Your-TERMINAL my-rule2?\nmy-rule: "a" // a remark\n# another\nYour-TERMINAL: /x+/\nmy-rule2: my-rule+'.replace(
        "Your-TERMINAL", "YOUR-TERMINAL"
    ),
    "parts of other grammars": 'start: %lark {\n start: x+\n x: "a" y\n y: %json {"type": "null"}\n} "c" sub\nsub: %lark {\n start: "b"\n}',
    "imports": '%import common.INT\n%import common (WORD, LF)\nstart: INT LF WORD X ""\nX: INT "x" INT{1,2}',
    "options": '%llguidance {"no_forcing": true}\nstart: /[a-z]+/ %json {"enum": ["x", "yy"]} /[ab"]/',
    "the empty text": 'start: ""? "a" | "" | b\nb: "b" B\nB: /x*/',
}
PLAIN = {  # what Lark reads as well, by the lexer of llguidance
    "a patch": PATCH,
    "sums": 'start: sum\nsum: sum "+" term | term\nterm: term "*" factor | factor\nfactor: "(" sum ")" | NUMBER\nNUMBER: /[0-9]+/',
    "ignored": 'start: NAME "if" NAME | NAME "=" /[0-9]+/\nNAME: /[a-z]+/\n%ignore / +/',
    "longest match": 'start: A "y"* | "z"? "zb"\nA: /x|xy/',
    "a keyword and a name": 'start: NAME | "if" NUMBER\nNAME: /[a-z]+/\nNUMBER: /[0-9]+/',
}
SPACES = {"a schema among texts", "thoughts, then JSON", "calls in text"}  # where llguidance allows other white space in JSON


def _compiled(name: str) -> Expression:
    return grammar(GRAMMARS[name]) if name in GRAMMARS else grammar(PLAIN[name], lexer="greedy", ignored="any")


@cache
def _tokenizer() -> Any:
    class Bytes:
        eos_token_id, bos_token_id = 256, None
        tokens = (*(bytes([byte]) for byte in range(256)), *(name.encode() for name in NAMES.values()))
        special_token_ids = (*NAMES,)

        def __call__(self, text: str | bytes) -> list[int]:
            return list(text if isinstance(text, bytes) else text.encode())

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def _matcher(text: str) -> Any:
    matcher = llguidance.LLMatcher(_tokenizer(), llguidance.grammar_from("lark", text), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def _ids(data: bytes) -> list[int]:
    """A text as our automata read it, as tokens."""
    ids = {name.encode(): token_id for token_id, name in NAMES.items()}
    return [i for number, part in enumerate(divided(data)) for i in ([ids[part]] if number % 2 else part)]


def _data(token_ids: Sequence[int]) -> bytes:
    return b"".join(b"\xff%s\xff" % NAMES[i].encode() if i in NAMES else bytes([i]) for i in token_ids)


def _their_text(matcher: Any, random: Random, steps: int = 400) -> list[int] | None:
    """A random text of llguidance, letter by letter; None where it does not end by then."""
    matcher.reset()
    written: list[int] = []
    for _ in range(steps):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        may_end = mask >> 256 & 1
        allowed = [i for i in range(len(NAMES) + 256) if mask >> i & 1 and i != 256]
        if may_end and (not allowed or random.random() < 0.3):
            return written
        plain = [i for i in allowed if i > 256 or 32 <= i < 127 or i == 10]
        written.append(random.choice(plain or allowed))
        assert matcher.consume_token(written[-1])
    return None


needs_llguidance = pytest.mark.skipif(llguidance is None, reason="llguidance is not installed (the extra `bench`)")


def _accepted(matcher: Any, token_ids: Sequence[int]) -> bool:
    matcher.reset()
    accepted: bool = matcher.try_consume_tokens(list(token_ids)) == len(token_ids) and matcher.is_accepting()
    return accepted


def _compare(language: Expression, matcher: Any, random: Random, *, is_equal: bool = True) -> list[list[int]]:
    """Compare the verdicts on random texts of both, and on texts that are nearly theirs; return the texts of llguidance."""
    for _ in range(25):
        text = random_text(language.node, random, steps=random.randrange(40))
        assert _accepted(matcher, _ids(text)), text
    theirs = [found for _ in range(40) if (found := _their_text(matcher, random)) is not None]
    assert len(theirs) > 5
    for ids in theirs:
        place, more = random.randrange(len(ids) + 1), random.choice([[], ids[:1], [ord("a")], [257]])
        for text in (ids, [*ids[:place], *more, *ids[place + random.randrange(2) :]]):
            ours, verdict = language.accepts(_data(text)), _accepted(matcher, text)
            assert ours == verdict if is_equal else ours <= verdict, _data(text)
    return theirs


@needs_llguidance
@pytest.mark.parametrize("name", [*GRAMMARS, *PLAIN])
def test_verdicts_are_those_of_llguidance(name: str) -> None:
    _compare(_compiled(name), _matcher({**GRAMMARS, **PLAIN}[name]), Random(name), is_equal=name not in SPACES)


GBNF = {  # in the manner of those of llama.cpp
    "sums": r"""
        root ::= (sum "=" number "\n")+
        sum ::= term ([-+*/] term)*
        term ::= number | name | "(" sum ")"
        name ::= [a-z] [a-z0-9_]*   # a variable
        number ::= [0-9]+
        """,
    "chess": r"""
        root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
        move ::= (piece | pawn | castle) [+#]?
        piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
        pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
        castle ::= "O-O" "-O"?
        """,
    "a list": r"""
        root ::= item+
        item ::= "- " [^\r\n]+ "\n"
        """,
    "JSON": r"""
        root ::= object
        value ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
        array ::= "[" ws (value ("," ws value)*)? "]" ws
        string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
        number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
        ws ::= | " " | "\n" [ \t]{0,20}
        """,
}


@needs_llguidance
@pytest.mark.parametrize("name", GBNF)
def test_grammars_that_llguidance_has_converted_from_those_of_llama_cpp(name: str) -> None:
    text = dedent(GBNF[name])
    converted = llguidance.gbnf_to_lark.any_to_lark(text)
    theirs = _compare(grammar(converted), _matcher(converted), Random(name))
    plain = fsm.gbnf(text)
    assert all(plain.accepts(bytes(ids)) for ids in theirs), "a lexer reads less than the rules, and nothing else"


@needs_llguidance
def test_llguidance_accepts_what_is_written_for_random_grammars() -> None:
    num_texts = 0
    for seed in range(examples(80)):
        random = Random(seed)
        text = grammar_text(random).replace(".2:", ":")  # it has no priorities
        if '"IF"i' in text or r"\w" in text:  # of which Python's `re` has other letters
            continue
        try:
            matcher, language = _matcher(text), grammar(text, lexer="greedy", ignored=random.choice(["one", "any"]))
        except (AssertionError, fsm.FSMError):  # lookarounds and priorities, which it refuses; rules that never end
            continue
        for _ in range(4):
            written = random_text(language.node, random, steps=random.randrange(15))
            assert _accepted(matcher, list(written)), (text, written)
            num_texts += 1
    assert num_texts > examples(40)


EXAMPLE = """*** Begin Patch
*** Add File: hello.txt
+Hello world
+
*** Update File: src/app.py
*** Move to: src/main.py
@@ def greet():
-print("Hi")
+print("Hello, world!")
{}
*** Delete File: obsolete.txt
*** End Patch
""".replace("{}", " ")


@pytest.mark.parametrize("lexer", ["contextual", "dynamic", "greedy"])
def test_a_grammar_for_patches_has_lines_that_may_be_empty(lexer: Any) -> None:
    language = grammar(PATCH, lexer=lexer)
    assert language.accepts(EXAMPLE)
    assert language.accepts(EXAMPLE.rstrip("\n"))
    for wrong in (EXAMPLE.replace("hello.txt", ""), EXAMPLE.replace("@@ d", "@@d"), EXAMPLE.replace("+\n", "\n"), EXAMPLE + "x"):
        assert not language.accepts(wrong)


def test_special_tokens_are_symbols() -> None:
    language = grammar(GRAMMARS["thoughts, then JSON"])
    think, over = special("<think>"), special("</think>")
    assert language.specials == {"<think>", "</think>"}
    assert language.accepts([think, "\nabc", over, '{"name":"add","x":1}'])
    assert not language.accepts('<think>\nabc</think>{"name":"add","x":1}')
    assert pickle.loads(pickle.dumps(language)).specials == language.specials  # noqa: S301


def test_other_grammars_are_given_by_name() -> None:
    call = fsm.json_schema({"type": "object", "properties": {"x": {"type": "array"}}, "required": ["x"]})
    text = 'start: /[a-z ]*/ | "(" @call ")" @call?'
    language = grammar(text, grammars={"call": call})
    assert [language.accepts(t) for t in ("a b", '({"x":[]})', '({"x":[[]]}){"x":[]}', "()")] == [True, True, True, False]
    assert language.report == call.report + call.report
    assert pickle.loads(pickle.dumps(language)).accepts('({"x":[]})')  # noqa: S301
    with pytest.raises(GrammarError, match="`@call` is none of the given `grammars`"):
        grammar(text)


def test_what_schemas_check_is_checked() -> None:
    language = grammar('start: "x" %json {"type": "array", "items": {"type": "integer"}, "uniqueItems": true} "y"')
    assert language.has_checks
    assert [language.accepts(text) for text in ("x[1,2]y", "x[1,1]y")] == [True, False]
    assert {line.level for line in language.report} == {"exact", "checked"}


def test_captures_are_listed_as_what_changes_no_text() -> None:
    report = grammar(GRAMMARS["a suffix"]).report
    assert [(line.pointer, line.keyword, line.level) for line in report] == [
        ("rule f", "capture", "annotated"),
        ("rule last", "capture", "annotated"),
    ]


TEXTS = ["if", "if,", "ab,", "a b"]


def test_a_grammar_that_lark_reads_is_read_as_before() -> None:
    text = 'start: NAME [","]\n  | ("if" [NAME])~1..2\nNAME: /[a-z]+/ // a name [x]: y'
    accepted = {lexer: [t for t in TEXTS if grammar(text, lexer=lexer).accepts(t)] for lexer in (None, "contextual", "greedy")}
    assert accepted == {None: ["if", "ab,"], "contextual": ["if", "ab,"], "greedy": ["if", "if,", "ab,"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('start: f "x"\nf[stop="<end>"]: /.*/', "line 2 column 3: `[stop]` is not supported"),
        ("start: f\nf[max_tokens=3]: /.*/", "`[max_tokens]` is not supported: a language counts characters"),
        ("start: f\nf[temperature=0.5]: /.*/", "`[temperature]` is not supported"),
        ("start: f\nf[colour=3]: /.*/", "unknown attribute 'colour'"),
        ("start: F\nF[lazy]: /.*x/", "line 2 column 2: priorities and attributes of terminals are not supported"),
        ('start: F{2}\nF.2: "x"', "priorities and attributes of terminals are not supported"),
        ('start: F{3,2}\nF: "x"', "the counts of '{3,2}' are the wrong way round"),
        ('start: F\nF: "x"{3,2}', "the counts of '{3,2}' are the wrong way round"),
        ("start: <[257]>", "token ids (`<[257]>`) are not supported"),
        ("start: <[*]>", "token ids (`<[*]>`) are not supported"),
        ("start: x::0x1\nx::_: /a/", "parametric rules (`::`) are not supported"),
        ('start: "a" & "b"', "`&` is for terminals"),
        ('start: ~"a"', "`~` is for terminals"),
        ("start: f\nf[lazy]: g\ng: /a/", "the terminal 'g' is not there"),
        ('start: A\nA: B "-"{2}\nB: "x" A', "the terminal 'A' contains itself"),
        ('start: A{2}\nA: "b".."a"', "expected a range of characters"),
        ('start: A{2}\nA: ("b"', "`(` is not closed"),
        ('start: A{2}\nA: "b" )', "expected a terminal, received ')'"),
        ("start: A{2}\nA: <think>", "'<think>' cannot be a part of a terminal"),
        ("start: A{2}\nA: /(/", "cannot be read"),
        ('start: %regex {"substring_lines": "a"}', "this `%regex` is not supported"),
        ("start: %json {", "the JSON after `%json` cannot be read"),
        ("start: %lark {", "expected a grammar in braces after `%lark`"),
        ('%llguidance {"fast": true}\nstart: "a"', "the option 'fast' of `%llguidance` is not known"),
        ("start: A{2}\nx y z", "expected a definition"),
        ('start: "a"{2} b', "rule 'b' used but not defined"),
        ('%import x.y\nstart: A{2}\nA: "a"', "expected an import from one of"),
    ],
)
def test_what_no_language_has_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(GrammarError) as caught:
        grammar(text)
    assert said in str(caught.value)


def test_options_of_lark_do_not_go_with_the_dialect() -> None:
    for options in ({"lexer": "contextual"}, {"strict": True}):
        with pytest.raises(GrammarError, match="dialect of llguidance"):
            grammar('start: "a"{2}', **options)  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="`lexer` is 'contextual' or 'dynamic' or 'greedy'"):
        grammar('start: "a"', lexer="fast")  # type: ignore[arg-type]
    with pytest.raises(fsm.SchemaError):
        grammar('start: %json {"type": "text"}')
