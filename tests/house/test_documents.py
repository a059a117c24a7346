"""Documents name files, tests and papers that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/*.md",
        "experiments/*.md",
        "results/*.md",
        "benchmarks/*.md",
    )
    for path in ROOT.glob(pattern)
)
CODE = sorted(
    path for room in ("raysafl", "experiments") for path in ROOT.glob(f"{room}/**/*.py")
)


def test_every_paper_that_is_cited_has_its_reference() -> None:
    anchors = set(
        re.findall(r'<a id="([^"]+)"', (ROOT / "docs" / "papers.md").read_text())
    )
    cited = {
        (path.relative_to(ROOT).as_posix(), key)
        for path in [*CODE, *DOCUMENTS]
        for key in re.findall(r"papers\.md#([\w-]+)", path.read_text())
    }
    assert anchors and not {place for place in cited if place[1] not in anchors}


@pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_every_link_of_a_document_leads_to_a_file(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    assert not [target for target in targets if not (path.parent / target).exists()]


@pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_every_file_of_ours_that_a_document_names_is_there(path: Path) -> None:
    names = re.findall(
        r"`((?:raysafl|tests|experiments|docs|benchmarks)/[\w/.-]+\.\w+)",
        path.read_text(),
    )
    assert not [name for name in names if not (ROOT / name).exists()]
