"""The README's promises: its commands are CI's, and its table and picture are of the quickstart."""

import re
from pathlib import Path

from raysafl.quickstart import BASE, SWEEP

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_two_commands_are_what_a_user_and_ci_give() -> None:
    user, developer = re.findall(r"```bash\n(.*?)\n```", README)
    assert user.endswith("pip install -e '.[all]' && raysafl quickstart")
    assert developer.endswith("pip install -e '.[test]' -c constraints.txt && pytest")
    ci = (ROOT / ".ci" / "run").read_text()
    assert "-e '.[test]' -c constraints.txt" in ci and "--cov=raysafl" in ci
    assert "\nraysafl quickstart " in ci


def test_it_is_short() -> None:
    assert 500 <= len(README.split()) <= 700


def test_the_quickstart_is_what_the_readme_says() -> None:
    assert BASE.replicates == 5 and BASE.rounds == 60 and BASE.data.clients == 10
    assert len(SWEEP.runs) == 18 and BASE.data.server.n0 == 100
    assert README.count("±") == 18 + 1  # an entry for each run, and the line below them
