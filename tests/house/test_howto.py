"""The code in docs/howto-tools.md runs as it is printed."""

import re
import sys
from pathlib import Path

import pytest
from helpers.commands import checked_output
from helpers.scripts import run_script

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "howto-tools.md").read_text()
SECTIONS = {
    title: body
    for title, _, body in (part.partition("\n") for part in TEXT.split("\n## ")[1:])
}
# Packages that are no dependencies; without them the section is not run.
NEEDED = {"Weights and Biases, offline": "wandb", "Hydra and OmegaConf": "hydra"}
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
# They start a Ray that would stay in this process, and other sections start none.
STARTS_RAY = ("A plain `tune.Tuner`", "A Ray that runs already")
CODE = {
    title: found[1]
    for title, body in SECTIONS.items()
    if (found := PYTHON.search(body))
}


@pytest.mark.acceptance
@pytest.mark.parametrize("title", CODE)
def test_the_code_of_a_section_runs(title: str, tmp_path: Path) -> None:
    if title in NEEDED:
        pytest.importorskip(NEEDED[title])
    script = tmp_path / "script.py"
    script.write_text(CODE[title])
    if configuration := re.search(r"```yaml\n(.*?)```", SECTIONS[title], re.DOTALL):
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf" / "config.yaml").write_text(configuration[1])
    alone = title in STARTS_RAY
    command = [sys.executable, script]
    said = checked_output(command, cwd=tmp_path) if alone else run_script(script)
    results = tmp_path / "results"
    if "sweep = fl.Sweep(" in CODE[title]:
        assert "Results, table and curves: results/" in said
    if title == "TensorBoard":
        assert list(results.glob("in_tensorboard/logs/s=0_*/events.out.tfevents.*"))
    if title == "Weights and Biases, offline":
        assert list(results.glob("in_wandb/logs/s=0_*/wandb/offline-run-*/*.wandb"))


def test_every_section_is_in_the_list_at_the_top() -> None:
    listed = re.findall(r"^- \[(.*?)\]\(#", TEXT, re.MULTILINE)
    assert listed == list(SECTIONS)
