"""More rounds than before: cells go on from the states in which shorter ones ended.

A cell of 100 rounds is another one than that of 50 rounds, but its first 50 are the same. So
if the state was kept in which the shorter one ended (`Runner.keep_states`), the longer one
goes on from there, with its rows. Learning rates may depend on the number of rounds, and the
last round is evaluated in any case: where the longer cell would differ by that, it is
computed from its first round.
"""

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from raysafl.core.algorithm import LocalTraining
from raysafl.core.text import count
from raysafl.simulation.checkpoint import dump, load
from raysafl.simulation.run import Run
from raysafl.storage.ledger import Checkpoint
from raysafl.storage.rows import CLIENTS, of_cells
from raysafl.sweep.attempt import Attempt


class MoreRounds:
    """Which cells go on from shorter ones that have ended.

    Args:
        attempt: says which cells are to be done, and which runs the folder had before.
    """

    def __init__(self, attempt: Attempt) -> None:
        self.store = attempt.store
        # The shorter cell from which each one goes on, by its id.
        self.shorter: dict[str, str] = {}
        # The rounds that need not be run, of all cells together.
        self.rounds = 0
        # Why others do not, and how many.
        self.refused: Counter[str] = Counter()
        # A rule would stop new cells by the last rounds of the shorter ones.
        if not attempt.options.resume or attempt.options.is_one_by_one:
            return
        # How many rounds the cells had of which a state was kept.
        kept: dict[str, int] = {}
        for file in self.store.files("states"):
            head = self.store.checkpoint(file, with_state=False)
            if head is not None and file.stem in head.cells:
                kept[file.stem] = head.cells[file.stem].rounds
        entries = attempt.earlier.entries if attempt.earlier else []
        earlier = {int(entry.config.get("rounds", 0)) for entry in entries}
        lengths = sorted({*kept.values(), *earlier}, reverse=True)
        ended = self.store.ledger() if lengths else {}
        for run in (cell for cells in attempt.todo.values() for cell in cells):
            for rounds in (length for length in lengths if length < run.rounds):
                shorter = run.model_copy(update={"rounds": rounds}).id
                if shorter not in ended:
                    continue
                if why := _why_anew(run, rounds, shorter in kept):
                    self.refused[why] += 1
                else:
                    self.shorter[run.id] = shorter
                    self.rounds += rounds
                break

    def __str__(self) -> str:
        """Say it in one line; empty if there is nothing to say."""
        parts = []
        if self.shorter:
            text = count(len(self.shorter), "seed")
            parts.append(f"{text} continued from where shorter runs ended")
        for why, number in self.refused.items():
            text = count(number, "seed")
            parts.append(f"{text} computed from the first round, because {why}")
        return "; ".join(parts)

    def checkpoints(self, cells: Iterable[Run]) -> list[Checkpoint]:
        """Return from where some cells go on."""
        pairs = {self.shorter[run.id]: run for run in cells if run.id in self.shorter}
        if not pairs:
            return []
        rows = self.store.results(pairs.keys(), unended=False).rows
        found = []
        for shorter, run in pairs.items():
            own = of_cells(rows, [shorter])
            checkpoint = self.store.checkpoint(self.store.state(shorter))
            if checkpoint is None or not len(own):
                continue
            far = checkpoint.cells[shorter].model_copy(update={"rounds": run.rounds})
            own = own.set_column(0, "cell", pa.repeat(run.id, len(own)))
            state = dump({run.id: load(checkpoint.state)[shorter]})
            found.append(Checkpoint({run.id: far}, own, CLIENTS.empty_table(), state))
        return found


def _why_anew(run: Run, rounds: int, is_kept: bool) -> str:
    """Say why a cell cannot go on from one of fewer rounds; empty if it can."""
    parts = (p for p in run.components() if isinstance(p, LocalTraining))
    if any(part.over(rounds) != part.over(run.rounds) for part in parts):
        return "their learning rates depend on the number of rounds"
    clients = run.eval_clients
    if rounds % run.eval_every or (clients is not None and rounds % clients.every):
        return f"their last round, {rounds}, was evaluated only because it was the last"
    if not is_kept:
        return (
            f"the states after their {rounds} rounds were not kept (keep_states, "
            "--keep-states)"
        )
    return ""
