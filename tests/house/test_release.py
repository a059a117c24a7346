"""What others read of the project: citation, paper, templates, image, and what is installed."""

import json
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from functools import partial
from pathlib import Path

import pytest
import yaml
from helpers.commands import checked_output

from raysafl.core.needs import OPTIONAL
from raysafl.version import __version__

ROOT = Path(__file__).parents[2]


def test_the_citations_have_version_name_and_licence_of_the_package() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    archived = json.loads((ROOT / ".zenodo.json").read_text())
    assert cited["version"] == archived["version"] == __version__
    assert cited["title"] == archived["title"]
    assert " ".join(cited["abstract"].split()) == archived["description"]
    assert cited["authors"] == archived["creators"]
    declared = re.search(
        r'^license = "(.*?)"', (ROOT / "pyproject.toml").read_text(), re.M
    )
    assert declared and declared[1].split(" AND ") == cited["license"]


def test_the_paper_cites_exactly_what_its_bibliography_holds() -> None:
    paper = (ROOT / "paper" / "paper.md").read_text()
    bibliography = (ROOT / "paper" / "paper.bib").read_text()
    entries = re.findall(r"^@\w+\{(\w+),", bibliography, re.MULTILINE)
    assert sorted(entries) == sorted(set(re.findall(r"@(\w+)", paper)))
    assert bibliography.count("{") == bibliography.count("}")
    head = yaml.safe_load(paper.split("---")[1])
    assert (ROOT / "paper" / head["bibliography"]).is_file()
    assert 750 <= len(paper.split("---", 2)[2].split()) <= 1750  # JOSS's limits


def test_the_workflow_runs_what_anybody_can_run() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())
    steps = workflow["jobs"]["checks"]["steps"]
    assert steps[-1] == {"run": "bash .ci/run"}
    pythons = workflow["jobs"]["checks"]["strategy"]["matrix"]["python"]
    needs = re.search(
        r'requires-python = ">=(.*?)"', (ROOT / "pyproject.toml").read_text()
    )
    assert needs and needs[1] in pythons


def test_the_image_is_built_from_pinned_versions_by_nobody_special() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    words = [line.split() for line in lines]
    known = {*"FROM ARG ENV WORKDIR COPY RUN USER ENTRYPOINT CMD".split()}
    assert {line[0] for line in words} <= known
    assert words[0][0] == "FROM" and re.fullmatch(r"python:3\.\d+-[\w-]+", words[0][1])
    sources = [name for line in words if line[0] == "COPY" for name in line[1:-1]]
    assert sources and all((ROOT / name).exists() for name in sources)
    kept = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().split()
        if line[0] == "!"
    }
    assert kept == set(sources)
    installs = re.findall(r"pip install [^&]*", text)
    assert installs and all("-c constraints.txt" in command for command in installs)
    users = [line[1] for line in words if line[0] == "USER"]
    assert users and users[-1] != "root"
    for name in ("ENTRYPOINT", "CMD"):
        (form,) = [line for line in lines if line.startswith(name)]
        assert isinstance(json.loads(form.removeprefix(name)), list)


@pytest.mark.acceptance
def test_the_built_wheel_holds_the_package_alone_and_runs_the_quickstart(
    tmp_path: Path,
) -> None:
    pytest.importorskip("build.__main__", reason="needs the package build")
    # The source archive is made first, and the wheel of it.
    command = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    tracked = checked_output(["git", "ls-files", "raysafl"], cwd=ROOT)
    held = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert held == set(tracked.split())
    # A fresh environment without the repository. Its dependencies are those of this one,
    # whose own raysafl is installed as a link that a `.pth` file does not follow.
    environment = tmp_path / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    site = next((environment / "lib").glob("python*/site-packages"))
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    call = partial(checked_output, cwd=tmp_path, env=clean)
    pip = [sys.executable, "-m", "pip", "--python", python]
    call([*pip, "install", "--no-deps", "--no-index", wheel])
    here = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(here))
    said = call([environment / "bin" / "raysafl", "quickstart"])
    assert "Results, table and curves: results/quickstart" in said
    where = call([python, "-c", "import raysafl; print(raysafl.__file__)"])
    assert Path(where.strip()).is_relative_to(site)


def test_no_advice_installs_raysafl_from_an_index_where_it_is_not() -> None:
    """What stands in messages and documents works: from an index, or in a checkout."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    texts = [
        *ROOT.glob("raysafl/**/*.py"),
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.[mi]*"),
        *ROOT.glob("*.yaml"),
        ROOT / "Dockerfile",
    ]
    advised = [
        line[line.index("pip install") :]
        for path in texts
        if not path.name.startswith("log") and path.name != "CHANGELOG.md"
        for line in path.read_text().splitlines()
        if "pip install" in line
    ]
    assert len(advised) >= 20
    assert not [
        line for line in advised if re.search(r"install[^`&]*? '?raysafl", line)
    ]
    named = {
        name
        for line in advised
        for listed in re.findall(r"'\.\[([\w,]+)\]'", line)
        for name in listed.split(",")
    }
    assert named and named <= set(extras)


def test_ray_and_mlflow_are_installed_and_all_has_what_tutorials_use() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[\[<>=]", entry)[0] for entry in project["dependencies"]}
    assert {"ray", "mlflow"} <= names
    (all_extras,) = project["optional-dependencies"]["all"]
    assert set(re.findall(r"\w+", all_extras)) == {"raysafl", "optuna"}
    # What a message advises is of the versions that raysafl takes.
    _, command = OPTIONAL["ray"]
    bound = next(e for e in project["dependencies"] if e.startswith("ray")).split(",")[
        1
    ]
    assert command == f"pip install 'ray[tune]{bound}'"
