#!/usr/bin/env python3
"""Build the documentation site in build/site; a warning of the builder is an error.

    pip install -e '.[docs]' -c constraints.txt
    python docs/build_site.py

The pages of docs/ keep their names. What they link to elsewhere in the repository becomes
a page under `repository/`, so that every link of a page works on the site as it does in
the repository. The API reference is made from docstrings and fields, the reference of the
command line from its own help, and the example report from a measured sweep. The site loads
nothing from a network, and its search works from disk too: open build/site/index.html.
"""

import inspect
import json
import os
import pydoc
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml

import raysafl as fl

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
# The measured sweep whose report is shown.
EXAMPLE = ROOT / "results" / "measured" / "safari_table8_mnist"
NAMESPACES = [
    "algorithms",
    "participation",
    "data",
    "models",
    "objectives",
    "training",
]
# What functions and methods of `fl` return: their readers need them on the same page.
RETURNED = [
    "sweep.outcome.Outcome",
    "report.analysis.winner.Winner",
    "report.results.SweepResults",
    "report.analysis.method_statistics.MethodStatistics",
]
# Files that pages show, or offer as they are.
FILES = (".png", ".ipynb")
# Put before a page that the search leaves out.
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
# In dark mode figures get a dark ground, and keep their hues.
STYLE = """\
[data-md-color-scheme="slate"] article img { filter: invert(.95) hue-rotate(180deg); }
td:first-child code { white-space: nowrap; }
"""
# A page that is opened from disk may not start a worker from a file, but from a blob.
SHIM = '<script src="https://unpkg.com/iframe-worker/shim" type="text/javascript"></script>'
WORKER = """\
(() => {
  const source = %s;
  const Ordinary = window.Worker;
  const fromDisk = () => URL.createObjectURL(new Blob([source]));
  window.Worker = class extends Ordinary {
    constructor(url) { super(location.protocol === "file:" ? fromDisk() : url); }
  };
})();
"""
# The name of the site in the header of a page, which gets the version.
HEADER = re.compile(r'(<span class="md-ellipsis">\s*raysafl)(\s*</span>)')
# Whatever makes a browser load something, if its address is on a network.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)[^>]*\ssrc=["']?(?:https?:)?//[^>]*"""
    r"""|<link[^>]*rel=["']?(?:stylesheet|preconnect|icon)[^>]*(?:https?:)?//[^>]*"""
    r"""|@import[^;]*(?:https?:)?//[^;]*|url\(["']?(?:https?:)?//[^)]*"""
)


def place(path: Path) -> Path:
    """Return where a file of the repository stands in the pages, relative to PAGES."""
    if path == EXAMPLE:
        return Path("example_report.html")
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    place = Path("repository") / path.relative_to(ROOT)
    # Text that is no Markdown is shown on a page of its own.
    return place if path.suffix in (".md", *FILES) else Path(f"{place}.md")


def relinked(path: Path, found: set[Path]) -> str:
    """Return a page's Markdown with links that fit the site; note the files it links to."""

    def new(link: re.Match[str]) -> str:
        target = (path.parent / link[2]).resolve()
        if target.is_dir() and target != EXAMPLE:
            target /= "README.md"
        if target != EXAMPLE:
            found.add(target)
        there = os.path.relpath(place(target), place(path).parent)
        return f"{link[1]}{there}{link[3]}"

    # Code is left alone.
    parts = CODE.split(path.read_text())
    parts[::2] = [LINK.sub(new, part) for part in parts[::2]]
    return "".join(parts)


def write_page(name: str | Path, text: str) -> None:
    """Write a file among the pages."""
    file = PAGES / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def collect() -> None:
    """Put the pages of docs/ together with all that they link to, and so on."""
    done: set[Path] = set()
    found = {path for path in DOCS.rglob("*") if path.suffix in (".md", *FILES)}
    # The navigation names further ones.
    found |= {
        ROOT / name.removeprefix("repository/")
        for _, name in entries()
        if name.startswith("repository/")
    }
    while new := found - done:
        for path in sorted(new):
            done.add(path)
            if path.suffix == ".md":
                write_page(place(path), relinked(path, found))
            elif path.suffix in FILES:
                (PAGES / place(path)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, PAGES / place(path))
            else:
                name = path.relative_to(ROOT)
                kind = {".py": "python"}.get(path.suffix, "text")
                code = f"# {name}\n\n``````{kind}\n{path.read_text()}``````\n"
                write_page(place(path), code)


def hide_from_search() -> None:
    """Leave the log, the experiments and the pages for developers out of the search."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    (below,) = (entry["Developers"] for entry in nav if "Developers" in entry)
    hidden = {PAGES / name for _, name in entries(below)}
    for page in hidden | {*(PAGES / "repository").rglob("*.md")}:
        page.write_text(f"{HIDDEN}{page.read_text()}")


def entries(nav: Any = None) -> Iterator[tuple[str, str]]:
    """Yield title and file of each page in the navigation of mkdocs.yml, in order."""
    if nav is None:
        nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    for entry in nav:
        for title, below in entry.items():
            if isinstance(below, str):
                yield title, below
            else:
                yield from entries(below)


def documented(path: str, heading: str, value: Any) -> str:
    """Return the lines by which mkdocstrings documents an object, inherited fields included."""
    inherited = []
    if inspect.isclass(value) and hasattr(value, "model_fields"):
        inherited = sorted(
            set(value.model_fields) - set(inspect.get_annotations(value))
        )
    return (
        f"::: {path}\n    options:\n      heading: {heading}\n"
        f"      inherited_members: {inherited or False}\n"
    )


def methods(value: Any) -> list[str]:
    """Return the names of the public methods that a class defines itself."""
    return [
        name
        for name, member in vars(value).items()
        if not name.startswith(("_", "model_")) and inspect.isroutine(member)
    ]


def plain(kind: Any) -> str:
    """Return a type as a reader writes it, without the limits of its values."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return plain(inside[0])
    if origin in (Union, UnionType):
        return " or ".join(map(plain, inside))
    if origin is Literal:
        return " or ".join(map(repr, inside))
    if kind in (None, NoneType):
        return "None"
    name = getattr(origin or kind, "__name__", str(kind))
    return f"{name}[{', '.join(map(plain, inside))}]" if inside else name


def fields(name: str, value: Any) -> str:
    """Return the constructor's signature and one table of the fields of a component."""
    signature, rows = [], []
    for field, about in value.model_fields.items():
        default = "" if about.is_required() else repr(about.get_default())
        if about.default_factory is not None:
            default = "..."
        signature.append(f"{field}={default}" if default else field)
        meaning = " ".join((about.description or "").split()).replace("|", "\\|")
        kind = plain(about.annotation).replace("|", "\\|")
        row = (f"`{field}`", kind, f"`{default}`" if default else "", meaning)
        rows.append(f"| {' | '.join(row)} |")
    if not rows:
        return ""
    call = f"{name}({', '.join(signature)})"
    table = "\n".join(
        ["| field | type | default | meaning |", "|---|---|---|---|", *rows]
    )
    return f"\n## Fields of the constructor\n\n```python\n{call}\n```\n\n{table}\n"


def summary(value: Any) -> str:
    """Return the first paragraph of an object's docstring, for a table."""
    about = "" if isinstance(value, int | str | list) else inspect.getdoc(value) or ""
    return " ".join(about.split("\n\n")[0].split()).replace("|", "\\|")


def reference() -> None:
    """Write a page for each namespace and each of its names, and one for a first sweep."""
    elsewhere = {}
    for namespace in NAMESPACES:
        module = getattr(fl, namespace)
        about = inspect.getdoc(module) or ""
        text = [f"# fl.{namespace}\n\n{about}\n\n| name | meaning |\n|---|---|"]
        for name in sorted(module.__all__):
            path = f"raysafl.{namespace}.{name}"
            elsewhere[name] = f"[`{name}`][{path}]"
            value = getattr(module, name)
            text.append(f"| [`{name}`]({namespace}/{name}.md) | {summary(value)} |")
            full = f"fl.{namespace}.{name}"
            page = f"::: {path}\n    options:\n      heading: {full}\n"
            page += "      heading_level: 1\n"
            if inspect.isclass(value) and hasattr(value, "model_fields"):
                # The table has what mkdocstrings would show field by field.
                page += f"      members: {methods(value)}\n{fields(full, value)}"
            write_page(f"reference/{namespace}/{name}.md", page)
        write_page(f"reference/{namespace}.md", "\n".join(text) + "\n")
    shared = ", ".join(elsewhere[name] for name in fl.__all__ if name in elsewhere)
    text = [
        "# fl: runs and sweeps\n\n`import raysafl as fl` gives these names. Also in `fl`, and "
        f"documented on the pages of their families, are {shared}.\n"
    ]
    for name in sorted({*fl.__all__} - {*elsewhere, *NAMESPACES, "__version__"}):
        value = getattr(fl, name)
        text.append(documented(f"{value.__module__}.{name}", f"fl.{name}", value))
    text.append("## What these return\n\nThese classes have no name in `fl`.\n")
    for name in RETURNED:
        path = f"raysafl.{name}"
        text.append(documented(path, name.rpartition(".")[2], pydoc.locate(path)))
    write_page("reference/fl.md", "\n".join(text))


def command_line() -> None:
    """Write the page of the command line, as Typer describes it."""
    typer = [sys.executable, "-m", "typer", "raysafl.cli.app", "utils", "docs"]
    done = subprocess.run(
        [*typer, "--name", "raysafl", "--title", "The command line"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    # Typer cuts what a command does; its own section begins with the whole sentence.
    told = dict(
        re.findall(r"^#+ `raysafl ([\w ]+)`\n\n(.*)$", done.stdout, re.MULTILINE)
    )
    text = re.sub(
        r"^\* `(\w+)`: .*\.\.\.$",
        lambda line: f"* `{line[1]}`: {told[line[1]]}" if line[1] in told else line[0],
        done.stdout,
        flags=re.MULTILINE,
    )
    write_page("reference/command_line.md", text)


def example_report() -> None:
    """Make the report of a measured sweep anew, and put its page among the pages."""
    sweep = PAGES.parent / "example"
    shutil.rmtree(sweep, ignore_errors=True)
    shutil.copytree(EXAMPLE, sweep)
    command = "from raysafl.cli.start import main; main()"
    subprocess.run(
        [sys.executable, "-c", command, "report", str(sweep)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.copyfile(sweep / "report.html", PAGES / "example_report.html")
    shutil.rmtree(sweep)


def render() -> None:
    """Let zensical make the pages; what it or griffe complains about is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )
    print(done.stdout)
    # The builder's strict mode lets griffe's complaints about docstrings pass.
    if done.returncode or "griffe: " in done.stdout:
        sys.exit("The site was not built, for the reasons above.")


def index_for_models() -> None:
    """Write llms.txt: what each page is about, for a language model that looks for one."""
    lines = [
        "# raysafl",
        "",
        "> Sweeps of federated learning under partial client participation.",
        "",
    ]
    for title, name in entries():
        text = re.sub(r"<!--.*?-->", "", (PAGES / name).read_text(), flags=re.DOTALL)
        about = next(
            (p for p in text.split("\n\n") if re.match(r"\s*[A-Za-z`*]", p)), ""
        )
        about = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(about.split()))
        about = re.split(r"(?<=[.?!]) ", about)[0]
        lines.append(f"- [{title}]({address(name)}): {about}")
    (SITE / "llms.txt").write_text("\n".join(lines) + "\n")


def address(name: str) -> str:
    """Return the address of a page on the site."""
    return re.sub(r"\.md$", ".html", re.sub(r"README\.md$", "index.md", name))


def finish() -> None:
    """Make the search work from disk, and the papers that docstrings name links."""
    (worker,) = (SITE / "assets" / "javascripts" / "workers").glob("search.*.js")
    source = json.dumps(worker.read_text())
    (SITE / "assets" / "worker.js").write_text(WORKER % source)
    for page in SITE.rglob("*.html"):
        up = os.path.relpath(SITE, page.parent)
        text = page.read_text()
        text = HEADER.sub(rf"\1 {fl.__version__}\2", text, count=1)
        text = text.replace(SHIM, f'<script src="{up}/assets/worker.js"></script>')
        if page.is_relative_to(SITE / "reference"):
            text = re.sub(
                r"docs/([\w-]+)\.md(#[\w-]+)?",
                rf'<a href="{up}/\1.html\2">\1</a>',
                text,
            )
        page.write_text(text)


def faults() -> Iterator[str]:
    """Say what the built pages would load from a network, and which links lead nowhere."""
    for path in sorted(SITE.rglob("*")):
        if path.suffix not in (".html", ".css"):
            continue
        text = path.read_text()
        for what in LOADED.findall(text):
            yield f"{path.relative_to(SITE)} would load from a network: {what[:120]}"
        # The error page may stand anywhere, and its links begin with a slash.
        for link in set(re.findall(r'(?:href|src)="(?!data:)([^":#]+)[#"]', text)):
            if link.startswith("/") or (path.parent / link).exists():
                continue
            yield f"{path.relative_to(SITE)} has a link that leads nowhere: {link}"


def main() -> None:
    """Build the site, or end with what is wrong."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    collect()
    reference()
    command_line()
    example_report()
    write_page("assets/figures.css", STYLE)
    hide_from_search()
    render()
    index_for_models()
    finish()
    if found := list(faults()):
        sys.exit("\n".join(found))
    print(f"The site is built: {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
