"""Promises about the repository as a whole: what it never does, what its packages export, what importing them loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import indent
from types import FunctionType

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for d in ("fsm", "outlines_cont", "scripts", "benchmarks", "examples") for p in (ROOT / d).rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "diskcache"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def test_the_sources_are_found() -> None:
    assert len(SOURCES) > 200


# A source without any of these words has nothing of what is forbidden, and is not parsed, which takes ten times as long.
SUSPECT = re.compile(
    rf"\b({'|'.join(FORBIDDEN_MODULES)}|trust_remote_code)\b|\b(load|Environment)\b|(?<!re\.)\b({'|'.join(FORBIDDEN_CALLS)})\b"
)


def forbidden_in(source: str) -> Iterator[str]:
    """What a source does that none may do."""
    for node in ast.walk(ast.parse(source)) if SUSPECT.search(source) else ():
        if isinstance(node, ast.Import):
            yield from {name.name for name in node.names if name.name.split(".")[0] in FORBIDDEN_MODULES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                yield ast.unparse(node)
            if getattr(node.func, "attr", getattr(node.func, "id", "")) in {"load", "Environment"}:
                yield from {"torch.load", "yaml.load", "jinja2.Environment", "Environment"} & {ast.unparse(node.func)}
        elif isinstance(node, ast.keyword) and node.arg == "trust_remote_code" and ast.unparse(node.value) == "True":
            yield "trust_remote_code=True"


def test_no_source_unpickles_evaluates_or_trusts_remote_code() -> None:
    found = {str(path.relative_to(ROOT)): [*forbidden_in(path.read_text(encoding="utf-8"))] for path in SOURCES}
    assert {path: faults for path, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os, pickle", "pickle"), ("import dill.detect as d", "dill.detect"), ("from shelve import open", "shelve"),
        ("from marshal import (\n    loads,\n)", "marshal"), ("x = eval(y)", "eval(y)"), ("x = (\n    exec\n)(y)", "exec(y)"),
        ("compile('a', 'b', 'eval')", "compile('a', 'b', 'eval')"), ("__import__('os')", "__import__('os')"),
        ("torch.load(file)", "torch.load"), ("yaml . load(file)", "yaml.load"), ("jinja2.Environment()", "jinja2.Environment"),
        ("Environment(x)", "Environment"), ("open_it(trust_remote_code=True)", "trust_remote_code=True"),
    ],
)  # fmt: skip
def test_what_is_forbidden_is_found(source: str, expected: str) -> None:
    assert [expected] == [*forbidden_in(f"import re\n\n\ndef f():\n    re.compile('a')\n{indent(source, '    ')}\n")]


ALLOWED = ["re.compile('a')", "self.load(x)", "f(trust_remote_code=False)", "model.eval()", "# pickle", "evaluate(x)"]


@pytest.mark.parametrize("source", ALLOWED)
def test_what_is_allowed_is_not(source: str) -> None:
    assert [*forbidden_in(source)] == []


def test_no_text_has_marks_of_a_merge() -> None:
    folders = ("fsm", "outlines_cont", "scripts", "benchmarks", "examples", "tests", "docs")
    paths = [p for d in folders for p in (ROOT / d).rglob("*") if p.suffix in {".py", ".md", ".js", ".css", ".html", ".toml"}]
    marks = tuple(mark * 7 + " " for mark in "<>|")
    assert len(paths) > 500
    assert not [p for p in [*paths, *ROOT.glob("*.md")] if any(s.lstrip().startswith(marks) for s in p.read_text("utf-8").splitlines())]


def modules_of(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def loaded_by(statement: str) -> set[str]:
    return {module.split(".")[0] for module in modules_of(statement)}


def test_importing_fsm_loads_neither_torch_nor_transformers_nor_outlines_cont() -> None:
    assert not loaded_by("import fsm") & {"torch", "transformers", "outlines_cont"}


def test_importing_outlines_cont_loads_neither_torch_nor_transformers() -> None:
    assert not loaded_by("import outlines_cont") & {"torch", "transformers"}


def test_importing_the_state_loads_no_engine() -> None:
    assert not {name for name in modules_of("import outlines_cont.state") if name.startswith("outlines_cont.engine")}


def test_everything_that_is_exported_can_be_had_and_is_sorted() -> None:
    import fsm
    import outlines_cont

    for package in (fsm, outlines_cont):
        assert list(package.__all__) == sorted(package.__all__, key=lambda name: (not name.isupper(), name))
        assert len(package.__all__) == len(set(package.__all__))
        for name in package.__all__:
            assert getattr(package, name) is not None
            assert name in dir(package)
        with pytest.raises(AttributeError):
            package.no_such_name


# Functions that other modules of ours call, and no user.
INTERNAL = {
    "outlines_cont.errors": {"located", "located_at", "located_in", "shortened", "with_result"},
    "outlines_cont.generate": {"made_once", "maker_of"},
    "outlines_cont.samplers": {"gives_one_text"},
}
PUBLIC = ("adapters", "control", "errors", "generate", "models", "pipelines", "policies", "samplers", "templates")


@pytest.mark.parametrize("name", ["fsm", "fsm.types", "outlines_cont", *(f"outlines_cont.{name}" for name in PUBLIC)])
def test_completion_shows_the_public_names_of_a_module_and_no_others(name: str) -> None:
    module = import_module(name)
    assert dir(module) == sorted(module.__all__)
    assert len(module.__all__) == len(set(module.__all__))
    named = {public: getattr(module, public) for public in module.__all__}
    assert None not in named.values()
    own = {public for public, value in vars(module).items() if isinstance(value, type | FunctionType)}
    own = {public for public in own if vars(module)[public].__module__ == name and not public.startswith("_")}
    assert own - INTERNAL.get(name, set()) == own & {*module.__all__}
    assert INTERNAL.get(name, set()) <= own


# An import from one of our modules, wherever it stands: in a function or in a program that a test writes, too.
OUR_IMPORTS = re.compile(r"^ *from ((?:outlines_cont|fsm)[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)


def test_tests_benchmarks_and_examples_import_public_names_as_users_do() -> None:
    """So that what moves inside breaks only the tests of what is inside."""
    modules = [import_module(name) for name in ("fsm", "fsm.types", "outlines_cont", *(f"outlines_cont.{name}" for name in PUBLIC))]
    exported = {name: getattr(module, name) for module in modules for name in module.__all__}
    public, found, count = {"fsm.errors", "fsm.limits", *(module.__name__ for module in modules)}, [], 0
    for path in (p for d in ("tests", "benchmarks", "scripts", "examples") for p in (ROOT / d).rglob("*.py")):
        for module, imported in OUR_IMPORTS.findall(path.read_text(encoding="utf-8")):
            names = {*re.findall(r"(?<!as )\b\w+", imported)} & exported.keys()
            count += len(names)
            inner = None if module in public or not names else import_module(module)
            same = [name for name in names if inner is not None and getattr(inner, name, None) is exported[name]]
            found += [f"{path.relative_to(ROOT)}: {name} of {module}" for name in same]
    assert count > 900
    assert found == []
