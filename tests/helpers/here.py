"""A `Runner` that computes its runs in this process, for tests of all that surrounds them."""

from collections.abc import Callable, Mapping

import numpy as np

from raysafl import Run, Runner
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.runtime.provenance import provenance
from raysafl.storage.compaction import put_together_if_undamaged
from raysafl.storage.runs_table import write_runs_table
from raysafl.sweep.code_digest import CodeDigests
from raysafl.sweep.runner import Datasets
from raysafl.sweep.session import Session


class HereRunner(Runner):
    """Plans, forgets, compacts and reports as `Runner` does, without Ray and Tune.

    It carries out the runs of a grid one after the other.
    """

    def _fit(
        self,
        todo: Mapping[str, Run],
        ready: Callable[[], Datasets],
        skipped: int,
        digests: CodeDigests,
    ) -> bool:
        datasets = ready()
        for run in todo.values():
            data = datasets[run.data.source_key]
            work = Worker(run.cells, data, run.model, engine="fused")
            code = digests.of_run(run)
            Session([run], self.store, work, provenance(), code={run.id: code}).advance(
                np.inf
            )
        put_together_if_undamaged(self.store)
        write_runs_table(self.store)
        write_report(self.store)
        return True
