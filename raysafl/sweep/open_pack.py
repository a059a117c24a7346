"""A pack that has begun and not ended, wherever it is carried out.

Both executors carry out packs by this class: `here` in the command's own process, and
`ray` in the process of each trial. They differ in what hosts the clients, and in how their
news come to the driver.
"""

import gc
import io
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from raysafl.cluster.provenance import (
    OtherPackageError,
    check_package,
    package_digest,
    provenance,
)
from raysafl.core.work import Work
from raysafl.simulation.run import Run
from raysafl.storage.ledger import Checkpoint
from raysafl.storage.statistics import ACCURACY
from raysafl.sweep.choices import FLUSH_SECONDS
from raysafl.sweep.news import News
from raysafl.sweep.packs import Pack
from raysafl.sweep.session import Session, failure

# What trains and evaluates the cells of a pack, the name of its device, and its engine.
Hosted: TypeAlias = tuple[Work, str, str]
# Lets a machine host cells with one dataset, model and objective.
Host: TypeAlias = Callable[[Sequence[Run]], Hosted]


@dataclass(frozen=True)
class Terms:
    """What holds for all packs of a sweep.

    Args:
        commit: the git commit of the folder in which the sweep was started.
        package: the digest of the raysafl that started it, if machines of a cluster carry it
            out: all must have the same.
        report_seconds: the time between two reports; 0 reports every evaluated round, each
            with a checkpoint.
        flush_seconds: the time between two checkpoints that are quick to make.
        engine: the engine that computes gradients.
        metric: what the scheduler and the search algorithm go by.
        keep_states: whether the states are kept in which cells end.
    """

    commit: str
    package: str
    report_seconds: float
    flush_seconds: float = FLUSH_SECONDS
    engine: str = "auto"
    metric: str = ACCURACY
    keep_states: bool = False

    @property
    def no_metrics(self) -> dict[str, Any]:
        """What is reported before a round is evaluated.

        Tune ends a sweep with an error if a report lacks the metric that its scheduler
        or search algorithm goes by.
        """
        return {"round": 0, self.metric: math.nan, "test_loss": math.nan}


@dataclass(frozen=True)
class GivenPack:
    """What whoever carries out a pack is given.

    Args:
        pack: the pack.
        code: for each cell, by its id, a digest of each of the user's own classes.
        checkpoints: the files from which cells go on.
    """

    pack: Pack
    code: Mapping[str, Mapping[str, str]]
    checkpoints: Sequence[bytes] = ()


class OpenPack:
    """Carries out the cells of a pack, and tells what becomes of them.

    A cell that raises an error fails with the reason, and the others go on. If an error
    concerns several cells as a whole, the news ask for the halves of the pack.

    Nothing is touched before the first `advance`.

    Args:
        given: the pack, and from where it goes on.
        terms: what holds for all packs of the sweep.
        host: lets a machine host the cells.
        ends_process: whether an error is meant to end this process, and is no failure
            of a cell.
    """

    def __init__(
        self,
        given: GivenPack,
        terms: Terms,
        host: Host,
        ends_process: Callable[[BaseException], bool],
    ) -> None:
        self.given = given
        self.terms = terms
        self.host = host
        self.ends_process = ends_process
        # Of the process that carries out the pack, which may be on another machine.
        self.origin = {**provenance(), "commit": terms.commit}
        self.session: Session | None = None

    def advance(self) -> News:
        """Run rounds until a report is due, and then up to the next evaluated one."""
        try:
            if self.session is None:
                self.session = self._begin()
            self.session.advance(self.terms.report_seconds)
            news = self.session.news()
        except OtherPackageError as error:
            self.close()
            return News(self.terms.no_metrics, done=True, lost=str(error))
        # The user's own code may call `sys.exit`, which would end this process.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self.close()
            if self.ends_process(error):
                # In the middle of a round there is no state from which to go on.
                raise
            return self._failed(error)
        if news.done:
            self.close()
        return news

    def _begin(self) -> Session:
        """Get the cells ready."""
        if expected := self.terms.package:
            check_package(platform.node(), package_digest(), expected)
        runs = self.given.pack.runs
        work, device, engine = self.host(runs)
        session = Session(
            runs,
            work,
            {**self.origin, "device": device, "engine": engine},
            self.given.code,
            [Checkpoint.read(io.BytesIO(own)) for own in self.given.checkpoints],
            0.0 if not self.terms.report_seconds else self.terms.flush_seconds,
            self.ends_process,
            self.terms.keep_states,
        )
        # Some 300,000 objects of imported modules outlive the pack, as most of its own do
        # that are there now. The garbage collector would look at them every few rounds of
        # a large pack, which takes longer than a round.
        gc.freeze()
        return session

    def _failed(self, error: BaseException) -> News:
        """Return the news of a pack that could not be carried out as a whole."""
        nothing = self.terms.no_metrics
        if len(self.given.pack.runs) > 1:
            return News(nothing, done=True, halve=True)
        (run,) = self.given.pack.runs
        about = {**self.origin, "seed": run.seed}
        return News(nothing, done=True, ends=[failure(error, run.id, about)])

    def close(self) -> None:
        """Release the machine."""
        self.session = None
        gc.unfreeze()
