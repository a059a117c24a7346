"""Carrying out a run in this process, with a folder but without a `Runner` around it."""

import numpy as np

from raysafl import Run
from raysafl.cluster.provenance import provenance
from raysafl.core.work import Work
from raysafl.storage.store import Store
from raysafl.sweep.code.digest import CodeDigests
from raysafl.sweep.session import Session


def run_in_process(run: Run, store: Store, work: Work) -> str:
    """Carry out a run, as the reference that packs, trials and commands are compared with.

    Returns:
        Why its checkpoint was not used; empty if there was none, or it was used.
    """
    origin = {**provenance(), "device": "cpu"}
    code = {run.id: CodeDigests().of_run(run)}
    session = Session([run], store, work, origin, code=code)
    session.advance(np.inf)
    return session.begun_anew
