"""Build the documentation as a site in build/site, offline: `pip install -c constraints.txt '.[docs]' && python -m scripts.site`.

Pages are gathered in build/pages with the layout of the repository, so that a link leads to the same place on the site as in the
repository. Zensical renders them by `mkdocs.yml`. The build ends with an error if a link or an anchor leads nowhere, if a docstring
describes a parameter that its function lacks, or if a page would load something from another host. The site opens from the disk, too:
its search needs no server.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
GATHERED = [
    "CHANGELOG.md",
    "benchmarks/**/*.md",
    "docs/**/*",
    "examples/*.py",
    "examples/*.md",
    "outlines_cont/models/tiny/MODEL_CARD.md",
    "outlines_cont/models/tiny_vision/MODEL_CARD.md",
    "scripts/tiny/README.md",
    "scripts/tiny_vision/README.md",
]
"""What the site has besides README.md, which is its first page."""

COMMANDS = "<!-- commands -->"
"""In docs/reference/commands.md: where the help of the command line stands."""

UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
"""Before a page that the search leaves out: the tables of measurements would come before the guides."""

SHIM = "https://unpkg.com/iframe-worker/shim"
"""What a page loads to search from the disk; the site has its own copy."""

HOST = "https://outlines-cont.example/"
"""The `site_url` of mkdocs.yml: llms.txt needs one, and the site has no address of its own yet. Links become relative."""

CELLS = re.compile(r"^\|.*\|$", re.MULTILINE)
CODE = re.compile(r"(`+)[^`].*?\1")
CANONICAL = re.compile(r"<link\s[^>]*rel=[\"']?canonical[^>]*>")
LOADED = re.compile(
    r"<(?:(?:script|img|iframe)[^>]*\ssrc|link[^>]*rel=[\"']?(?:stylesheet|icon|preconnect)[^>]*href)=[\"']?(https?:[^\"'\s>]+)"
)


def main() -> None:
    """Build the site, and exit with 1 if something is wrong."""
    gather()
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(ROOT / "mkdocs.yml")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(done.stdout, end="")
    complaints = [line for line in done.stdout.splitlines() if line.startswith("griffe:")]
    for page in [*SITE.rglob("*.html"), *SITE.rglob("*.md"), *SITE.glob("llms*.txt")]:
        make_local(page)
        complaints += [f"{page}: loads {url}" for url in loaded(page.read_text(encoding="utf-8"))]
    (SITE / "sitemap.xml").unlink(missing_ok=True)
    if done.returncode or complaints:
        sys.exit("\n".join(["the site has errors", *complaints]))
    print(f"{SITE.relative_to(ROOT)}/index.html: {len(list(SITE.rglob('*.html')))} pages")


def gather() -> None:
    """Copy the pages, and write the help of the command line into its page."""
    shutil.rmtree(PAGES, ignore_errors=True)
    found = {path.relative_to(ROOT) for pattern in GATHERED for path in ROOT.glob(pattern) if path.is_file()}
    for path in sorted(found):
        (PAGES / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, PAGES / path)
    for page in PAGES.rglob("*.md"):
        page.write_text(with_pipes(page.read_text(encoding="utf-8")), encoding="utf-8")
    for page in (PAGES / "benchmarks" / "results").glob("*.md"):
        page.write_text(UNSEARCHED + page.read_text(encoding="utf-8"), encoding="utf-8")
    (PAGES / "index.md").write_text(with_pipes((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
    page = PAGES / "docs" / "reference" / "commands.md"
    page.write_text(page.read_text(encoding="utf-8").replace(COMMANDS, commands()), encoding="utf-8")


def with_pipes(text: str) -> str:
    """Return a page whose code in cells of tables has `|` for `\\|`: GitHub needs the backslash, and Python-Markdown shows it."""
    return CELLS.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text)


def commands() -> str:
    """Return the help of `outlines-cont` and of its commands, in Markdown."""
    command = [sys.executable, "-m", "typer", "outlines_cont.cli.__main__", "utils", "docs", "--name", "outlines-cont"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.partition("\n")[2].strip()


def make_local(page: Path) -> None:
    """Replace what refers to another host: the script of the search by the site's copy, the address of the site by relative links."""
    up = "../" * (len(page.relative_to(SITE).parts) - 1)
    text = CANONICAL.sub("", page.read_text(encoding="utf-8")).replace(SHIM, f"{up}docs/assets/iframe-worker.js")
    page.write_text(text.replace(HOST, up), encoding="utf-8")


def loaded(html: str) -> list[str]:
    """Return what a page loads from other hosts."""
    return LOADED.findall(html)


if __name__ == "__main__":
    main()
