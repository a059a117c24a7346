"""Documents name files, tests and papers that exist, and a test runs what they show."""

import inspect
import re
import shlex
from collections import Counter
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest
from helpers.scripts import BLOCK
from typer import Context
from typer.main import get_command

import raysafl as fl
from raysafl.cli.app import app

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
# Who runs how many blocks of a page: a test that reads the page, or CI. Python on other pages
# is run here, block by block in the order of the page; commands are given to the parser of
# the command line. Of a page docs/tutorial_*.md, test_tutorials.py runs all.
COMMITS, QUERIES = "tests/storage/test_journal.py", "tests/report/test_query.py"
RUN_BY = {
    ("CONTRIBUTING.md", "bash"): {".ci/run": 2},
    ("README.md", "bash"): {"tests/house/test_readme.py": 2},
    ("README.md", "python"): {"tests/house/test_readme.py": 2},
    ("docs/fair_baselines.md", "python"): {"tests/house/test_fair_baselines.py": 7},
    ("docs/howto-tools.md", "python"): {"tests/house/test_howto.py": 8},
    ("docs/howto-tools.md", "yaml"): {"tests/house/test_howto.py": 1},
    ("docs/kept_models.md", "python"): {"tests/kept/test_predict.py": 3},
    ("docs/objectives.md", "python"): {"tests/helpers/own_objective.py": 2},
    ("docs/one_page.md", "python"): {"tests/house/test_one_page.py": 2},
    ("docs/own_data.md", "python"): {"tests/data/test_own_data.py": 9},
    ("docs/query_results.md", "python"): {QUERIES: 11},
    ("docs/query_results.md", "sql"): {QUERIES: 10},
    ("docs/report.md", "python"): {QUERIES: 2},
    ("docs/sweep_folder.md", "python"): {COMMITS: 1},
    ("docs/sweep_folder.md", "sql"): {COMMITS: 1},
    ("docs/tutorials.md", "python"): {"tests/house/test_tutorials.py": 3},
    ("docs/who_is_served.md", "python"): {"tests/simulation/test_per_client.py": 3},
}
TUTORIALS = {page.name for page in ROOT.glob("docs/tutorial_*.md")}
SHOWN = {
    name: blocks
    for path in DOCUMENTS
    if (name := path.relative_to(ROOT).as_posix()) != "benchmarks/README.md"
    and (blocks := BLOCK.findall(path.read_text()))
}
HERE = [
    name
    for name, blocks in SHOWN.items()
    if any(not why and kind == "python" for why, kind, _ in blocks)
    and (name, "python") not in RUN_BY
    and Path(name).name not in TUTORIALS
]
# They name commands and files of their time.
HISTORY = {"docs/log.md", "docs/log_2026_11.md", "CHANGELOG.md"}
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


def refused(line: str) -> str | None:
    """Say what the parser of the command line has against a command, without running it."""
    command, words = get_command(app), shlex.split(line, comments=True)[1:]
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    if words in (["--help"], ["--version"]):
        return None
    if hasattr(command, "commands"):
        return f"{line}: no such command" if words else None
    try:
        command.make_parser(Context(command)).parse_args(words)
    except Exception as error:
        return f"{line}: {error}"
    return None


@pytest.mark.parametrize("name", SHOWN)
def test_every_block_of_code_is_run_or_says_why_not(name: str) -> None:
    in_full = {"python", "bash"} if Path(name).name in TUTORIALS else set[str]()
    without = Counter(kind for why_not, kind, _ in SHOWN[name] if not why_not)
    for kind, number in without.items():
        for runner in (runners := RUN_BY.get((name, kind), {})):
            said = (ROOT / runner).read_text()
            assert runner == ".ci/run" or Path(name).name in said, runner
        assert sum(runners.values()) in (number, 0), f"{number} blocks of {kind}"
    for why_not, kind, code in SHOWN[name]:
        if why_not or kind in in_full or (name, kind) in RUN_BY:
            continue
        if kind in ("bash", "sh"):
            foreign = [
                line
                for line in code.replace("\\\n", " ").splitlines()
                if line and not line.startswith(("#", "raysafl "))
            ]
            assert not foreign, "give the reason in a comment <!-- not run: ... -->"
        else:
            assert kind in ("python", "text"), f"no test runs {kind} on this page"


def test_the_command_line_accepts_every_command_that_a_document_shows() -> None:
    lines = set()
    for path in DOCUMENTS:
        text = path.read_text()
        if path.relative_to(ROOT).as_posix() in HISTORY:
            continue
        for _, kind, code in BLOCK.findall(text):
            if kind in ("bash", "sh"):
                lines |= set(code.replace("\\\n", " ").splitlines())
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        lines |= set(map(" ".join, map(str.split, re.findall(r"`([^`]+)`", prose))))
    shown = {line for line in lines if re.match(r"raysafl [a-z-]", line)}
    assert len(shown) > 40
    assert not list(filter(None, map(refused, sorted(shown))))
    assert refused("raysafl run mine.py --scales smoke") and refused("raysafl bench")


@pytest.mark.usefixtures("quick_sweeps", "untried_sweeps")
@pytest.mark.parametrize("name", HERE)
def test_the_python_of_a_page_runs_as_printed(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # A class of the user's is known by the file in which it stands, as in a file of theirs.
    names: dict[str, object] = {"__name__": "__main__", "__file__": "page.py"}
    for why_not, kind, code in SHOWN[name]:
        if kind == "python" and not why_not:
            exec(compile(code, name, "exec"), names)
            said = capsys.readouterr().out
        # What stands behind a block is what it prints.
        elif kind == "text":
            assert said == code
    assert len(names) > 2


def test_the_page_of_environment_variables_names_all_that_the_package_knows() -> None:
    pattern = r'\b((?:RAYSAFL|MKL|CUDA|CUBLAS|MLFLOW|RAY|TUNE)_[A-Z0-9_]+)(?=[="])'
    known = {
        name
        for path in (ROOT / "raysafl").rglob("*.py")
        for name in re.findall(pattern, path.read_text())
    }
    told = set(
        re.findall(r"`([A-Z]+_[A-Z_]+)`", (ROOT / "docs/environment.md").read_text())
    )
    assert {"RAYSAFL_DATA", "TUNE_MAX_PENDING_TRIALS_PG"} <= known and known <= told


def test_every_name_of_raysafl_that_a_document_gives_exists() -> None:
    unknown = []
    for path in DOCUMENTS:
        prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for code in re.findall(r"`([^`]+)`", prose):
            for name in re.findall(r"(?<![\w./])fl((?:\.[A-Za-z_]\w*)+)", code):
                try:
                    attrgetter(name[1:])(fl)
                except AttributeError as error:
                    unknown.append(f"{path.name}: fl{name}: {error}")
    assert not unknown


def test_every_example_with_a_trainable_reuses_its_processes() -> None:
    """Otherwise each trial starts a process, which imports torch for some seconds."""
    blocks = [code for shown in SHOWN.values() for _, _, code in shown]
    tuned = [code for code in [*blocks, str(fl.trainable.__doc__)] if "Tuner(" in code]
    tuned = [code for code in tuned if "fl.trainable(" in code]
    assert len(tuned) >= 2 and all("reuse_actors=True" in code for code in tuned)


@pytest.mark.parametrize(
    ("page", "namespace", "base"),
    [
        ("algorithms", fl.algorithms, fl.Algorithm),
        ("policies", fl.participation, fl.Participation),
        ("non_iid", fl.data, fl.data.Partition),
    ],
)
def test_the_table_of_a_family_lists_every_class_that_can_be_used(
    page: str, namespace: ModuleType, base: type
) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    classes = [
        name
        for name in namespace.__all__
        if isinstance(value := getattr(namespace, name), type)
        and issubclass(value, base)
        and not inspect.isabstract(value)
        and value not in (base, fl.algorithms.FedOpt)
    ]
    assert len(classes) > 8
    assert not [
        name for name in classes if not re.search(rf"\| .*`.*\b{name}\b.*`.* \|", text)
    ]
