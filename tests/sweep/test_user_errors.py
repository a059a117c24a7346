"""What an error of the user's own code says: class, file and line first; the whole traceback."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.mistakes import algorithm, load, model, place
from rich.console import Console

from raysafl import Hardware, LocalTraining, Runner, Sweep
from raysafl.sweep.outcome import Outcome
from raysafl.sweep.user_errors import describe_error

LATE = algorithm(
    "if key.round == 1:",
    "    helped(state)",
    "update = yield Train(state.w_P, ids)",
    "return replace(state, w_P=state.w_P - update.delta_MP.mean(0))",
)
HELPED = (
    LATE + "\ndef helped(state):\n" + "    raise OSError('https://host/x is down')\n"
)


def go(sweep: Sweep, out: Path) -> tuple[Outcome, str]:
    said = io.StringIO()
    console = Console(file=said, width=300)
    outcome = Runner(sweep, out, executor="here", console=console).run()
    return outcome, said.getvalue()


def test_a_failing_run_names_the_users_class_and_line_and_keeps_the_traceback(
    tmp_path: Path,
) -> None:
    sweep = load(tmp_path, HELPED, "algorithm=Mine()")
    outcome, said = go(sweep, tmp_path / "s")
    entry, other = outcome.store.ledger().values()
    assert other.reason == entry.reason
    line = place(HELPED, "raise OSError")
    assert entry.reason == f"helped ({line}): OSError: https://host/x is down"
    assert entry.traceback.startswith("Traceback (most recent call last):")
    assert "in round\n    helped(state)" in entry.traceback
    assert "replicates.py" in entry.traceback
    # Two replicates failed with the run, and the error is printed once, by its labels.
    assert len(outcome.bad) == 2 and said.count("OSError") == 1
    assert "method=mine, s=0: failed, 2 of 2 seeds: helped (" in said
    (artifact,) = tmp_path.rglob("traceback.txt")
    assert artifact.read_text() == entry.traceback


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
def test_an_error_on_a_client_actor_names_the_users_line(tmp_path: Path) -> None:
    code = (
        "class Net(nn.Linear):\n"
        "    def forward(self, x):\n"
        # A driver tries it on eight samples, an actor on two.
        "        if self.training and len(x) < 8:\n"
        "            raise KeyError('missing')\n"
        "        return super().forward(x.flatten(1))\n"
    ) + model("return Net(64, num_classes)")
    sweep = load(tmp_path, code, "model=Mine()")
    hardware = Hardware(cpus=0.5, trials=1)
    runner = Runner(
        sweep, tmp_path / "s", hardware, track="none", quiet=True, try_first=False
    )
    entry, *_ = runner.run().store.ledger().values()
    assert (
        entry.reason
        == f"forward ({place(code, 'raise KeyError')}): KeyError: 'missing'"
    )
    assert "ray::start" in entry.traceback and "\x1b" not in entry.traceback


def raised(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_sentence_of_raysafls_stays_as_it_is_and_the_users_call_is_named() -> None:
    error = raised(lambda: LocalTraining(lr=-1, batch_size=1, steps=1))
    assert re.match(
        r"<lambda> \(test_user_errors.py:\d+\): ValueError: ", describe_error(error)
    )
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert describe_error(error) == str(error)
