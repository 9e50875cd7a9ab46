"""Old names of public modules and of names in them: each works once more, says so once, and is the same object as the new one."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import outlines_cont
from outlines_cont.moved import moved_names

ROOT = Path(__file__).parents[2]
OLD_NAMES = {
    "outlines_cont": {"EngineInterrupted": "outlines_cont.errors.EngineInterrupted"},
    "outlines_cont.kv": {
        "Part": "outlines_cont.kv.row.KVPart",
        "Fed": "outlines_cont.kv.batch.Fed",
        "KVBatch": "outlines_cont.kv.batch.KVBatch",
        "KVPart": "outlines_cont.kv.row.KVPart",
        "KVStore": "outlines_cont.kv.store.KVStore",
        "PrefixCache": "outlines_cont.kv.prefix_cache.PrefixCache",
        "RecurrentBatch": "outlines_cont.kv.serial.RecurrentBatch",
        "RowKV": "outlines_cont.kv.row.RowKV",
        "SerialBatch": "outlines_cont.kv.serial.SerialBatch",
        "from_dynamic_cache": "outlines_cont.state.transformers_cache.from_dynamic_cache",
        "open_batch": "outlines_cont.kv.serial.open_batch",
        "to_dynamic_cache": "outlines_cont.state.transformers_cache.to_dynamic_cache",
    },
    "outlines_cont.state": {
        "SequenceState": "outlines_cont.state.sequence_state.SequenceState",
        "kv_bytes": "outlines_cont.state.sequence_state.kv_bytes",
    },
}


@pytest.mark.parametrize(("old", "new"), outlines_cont._OLD_MODULES.items())
def test_an_old_module_is_the_new_one_and_warns_once(old: str, new: str) -> None:
    sys.modules.pop(f"outlines_cont.{old}", None)
    with pytest.warns(DeprecationWarning, match="is now") as warned:
        module = import_module(f"outlines_cont.{old}")
    assert module is import_module(f"outlines_cont.{new}")
    said = [str(one.message) for one in warned if one.category is DeprecationWarning]
    assert len(said) == 1
    assert said[0].startswith(f"`outlines_cont.{old}` is now `outlines_cont.{new}`;")


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in OLD_NAMES.items() for name in names])
def test_an_old_name_of_a_module_is_the_new_one_and_warns(module: str, name: str) -> None:
    home, _, new = OLD_NAMES[module][name].rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"`{module}.{name}` is now `{home}.{new}`"):
        found = getattr(import_module(module), name)
    assert found is getattr(import_module(home), new)


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'a\.b' has no attribute 'c'"):
        moved_names("a.b", {"d": "a.b.d"})("c")
    with pytest.raises(ModuleNotFoundError):
        import_module("outlines_cont.no_such_module")


@pytest.mark.parametrize("old", ["executor", "state"])
def test_the_warning_names_the_line_of_the_user(old: str, tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    name = {"executor": "BatchedExecutor", "state": "SequenceState"}[old]
    script.write_text(f"import warnings\nwarnings.simplefilter('always')\nfrom outlines_cont.{old} import {name}\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert f"{script}:3: DeprecationWarning" in done.stderr


def test_the_package_loads_neither_torch_nor_fsm_for_its_old_names() -> None:
    code = "import sys, outlines_cont; print({'torch', 'transformers', 'fsm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"


def test_the_changelog_names_every_old_name() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("## [0")[0]
    names = [f"{module}.{name}" for module, names in OLD_NAMES.items() for name in names]
    for old in (*(f"outlines_cont.{module}" for module in outlines_cont._OLD_MODULES), *names):
        assert f"`{old}`" in changelog, old
