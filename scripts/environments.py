"""`run`: the tests in virtual environments with the lowest versions that `pyproject.toml` declares, and with the newest that exist.

    pip install -c constraints.txt '.[dev]'
    python -m scripts.environments                  # both, with the demo and the tests of models, caches, states and generators
    python -m scripts.environments --only lowest --tests tests
    python -m scripts.environments --only lowest --keep torch --tests tests/kv     # in CI
    python -m scripts.environments --only newest --python 3.13                     # packages that need a newer Python

The environments are made by uv: `lowest` by `--resolution lowest-direct`, so that what is not declared is new. They are kept in
`build/environments`, and made anew by `--again`. Each has the CUDA build of torch on Linux, 6 GB on the disk, of which 3 GB are downloaded
once; `--keep torch` takes the version of `constraints.txt`, which the machine has. Cost: a minute or two for each environment, and the
tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = {"lowest": ["--resolution", "lowest-direct"], "newest": ["--upgrade"]}
"""The options with which uv installs each kind of environment."""
TESTS = ["tests/model", "tests/models", "tests/kv", "tests/state", "tests/generate"]
SHOWN = ("torch", "transformers", "tokenizers", "pydantic", "jsonschema-rs", "numpy")


def run(
    kind: str,
    folder: Path,
    tests: list[str],
    *,
    keep: Sequence[str] = (),
    python_version: str = sys.executable,
    again: bool = False,
) -> bool:
    """Return whether the demo and the tests pass in an environment of a kind; it is made where it does not exist.

    Args:
        kind: a name of `KINDS`.
        folder: where the environment is made.
        tests: arguments of pytest.
        keep: packages that have the version of `constraints.txt`, in place of the lowest or the newest.
        python_version: the Python of a new environment: a version, such as `3.13`, or the path of a program.
        again: whether one that exists is removed first.

    Raises:
        SystemExit: uv is missing, or cannot install the packages.
    """
    if again and folder.exists():
        shutil.rmtree(folder)
    python = folder / "bin" / "python"
    if not python.exists():
        _uv("venv", "--quiet", "--python", python_version, str(folder))
    if keep:  # alone, so that what they need gets the lowest version, too
        _uv("pip", "install", "--quiet", "--python", str(python), "--no-deps", *_kept(keep))
    _uv("pip", "install", "--quiet", "--python", str(python), *KINDS[kind], f"{ROOT}[test]")
    print(f"== {kind}: {_versions(python)}", flush=True)
    # What is installed is run from the installed package, the tests from the checkout; no package of the machine is in the way.
    work = folder / "work"
    work.mkdir(exist_ok=True)
    demo = [str(folder / "bin" / "outlines-cont"), "demo"]
    pytest = [str(python), "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", *tests]
    return _passes(demo, work) and _passes(pytest, ROOT)


def _kept(names: Sequence[str]) -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = {line.partition("==")[0].strip(): line for line in lines}
    missing = [name for name in names if name not in found]
    if missing:
        sys.exit(f"expected packages of constraints.txt after `--keep`, got {', '.join(missing)}")
    return [found[name] for name in names]


def _versions(python: Path) -> str:
    code = (
        "from importlib.metadata import version; from platform import python_version; "
        f"print('Python', python_version(), *(f'{{n}} {{version(n)}}' for n in {SHOWN}), sep=', ')"
    )
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _passes(command: list[str], folder: Path) -> bool:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment).returncode == 0


def _uv(*arguments: str) -> None:
    if shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}") is None:
        sys.exit("expected the program `uv`, which is not installed. Run: pip install -c constraints.txt '.[dev]'")
    # uv is to find the wheels that pip finds.
    links = ",".join(os.environ.get("PIP_FIND_LINKS", "").split())
    environment = {**os.environ, **({"UV_FIND_LINKS": links} if links else {})}
    done = subprocess.run([sys.executable, "-m", "uv", *arguments], env=environment)
    if done.returncode:
        sys.exit(f"expected that uv can run `uv {' '.join(arguments)}`; see what it says above.")


def main(argv: list[str] | None = None) -> None:
    """Run what the command line asks for, and exit with 1 where an environment fails."""
    parser = argparse.ArgumentParser(prog="python -m scripts.environments", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=KINDS, help="one of the environments; both by default")
    parser.add_argument("--tests", nargs="+", default=TESTS, help=f"arguments of pytest; by default {' '.join(TESTS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "environments", help="where they are kept")
    parser.add_argument(
        "--keep", nargs="+", default=[], help="packages that have the version of constraints.txt, such as torch"
    )
    parser.add_argument("--python", default=sys.executable, help="the Python of new environments; by default this one")
    parser.add_argument("--again", action="store_true", help="make them anew")
    chosen = parser.parse_args(argv)
    kinds = [chosen.only] if chosen.only else list(KINDS)
    options = {"keep": chosen.keep, "python_version": chosen.python, "again": chosen.again}
    passed = {kind: run(kind, chosen.folder / kind, chosen.tests, **options) for kind in kinds}
    failed = [kind for kind, good in passed.items() if not good]
    if failed:
        sys.exit(f"the environment of {' and '.join(failed)} fails; see above")


if __name__ == "__main__":
    main()
