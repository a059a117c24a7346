"""The sweep as a Tune experiment, on a Ray of our own or a cluster's."""

import gc
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import ray
import ray.cloudpickle
from ray import tune
from ray._private import services
from ray.tune.search.basic_variant import BasicVariantGenerator

from raysafl.component import Component
from raysafl.core import Dataset
from raysafl.manifest import Entry, Label
from raysafl.place import StorageError, size
from raysafl.runtime import Hardware
from raysafl.simulation import Run
from raysafl.store import Store
from raysafl.sweep.definition import Make, Sweep
from raysafl.sweep.progress import Display
from raysafl.sweep.session import provenance
from raysafl.sweep.trial import Context, Trial
from raysafl.sweep.watch import Halt, Watch
from raysafl.tracking import Tracker

REPORT_SECONDS = 2.0  # between a trial's reports to Tune, unless a scheduler needs every round
RETRIES = 2  # of a trial whose process was lost
QUIET = {  # no tables of Tune's, nor logs, nor a snapshot every ten seconds: Parquet has it all
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


def _bases(part: Component) -> list[type[Component]]:
    return [kind for kind in type(part).__mro__ if issubclass(kind, Component)]


def ship(sweep: Sweep, runs: Iterable[Run]) -> None:
    """Send the user's own classes and functions to Ray's workers by value.

    Modules that are installed (site-packages) are imported there; a script, an experiment file
    and the modules beside it need not exist on the workers.
    """
    owners: list[Any] = [
        sweep.make,
        *(kind for run in runs for c in run.components() for kind in _bases(c)),
    ]
    modules = (sys.modules.get(getattr(owner, "__module__", "")) for owner in owners)
    folders = {file.parent for module in modules if (file := _own_file(module))}
    for module in list(sys.modules.values()):
        file = _own_file(module)
        if file and any(file.is_relative_to(folder) for folder in folders):
            ray.cloudpickle.register_pickle_by_value(module)


def _own_file(module: ModuleType | None) -> Path | None:
    """The file of a module of the user's; None for the script, ours and installed ones."""
    file, name = getattr(module, "__file__", None), getattr(module, "__name__", "")
    top = name.partition(".")[0]
    if not file or top in ("__main__", "__mp_main__", "raysafl", *sys.stdlib_module_names):
        return None
    installed = "site-packages" in file or "dist-packages" in file
    return None if installed else Path(file).resolve()


@contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Ray, for as long as the block runs: one that runs already, a cluster's, or our own."""
    if ray.is_initialized():
        yield
        return
    try:
        with _one_try(address) if address else _own():
            ray.init(
                address=address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except OSError as error:
        if not address:
            raise
        raise ValueError(
            f"cannot connect to a Ray cluster at '{address}' ({error}). Is it up (`ray status`)? "
            "If ~/.ray/auth_token exists where it was started, it asks for that token: set "
            "RAY_AUTH_MODE=token here, or start it with RAY_AUTH_MODE=disabled"
        ) from error
    try:
        yield
    finally:
        gc.collect()  # object references that Tune left: Ray ends the process (exit code 1) if
        collects = gc.isenabled()
        gc.disable()  # another thread, the tracker's say, frees one in the middle of its shutdown
        try:
            ray.shutdown()
        finally:
            if collects:
                gc.enable()


def check(hardware: Hardware) -> None:
    """Raise ValueError if a trial would not fit the machines of the Ray that runs."""
    hardware.check([node["Resources"] for node in ray.nodes() if node["Alive"]])


@contextmanager
def _own() -> Iterator[None]:
    """A Ray of our own listens on loopback only, as Ray does by itself on macOS and Windows, and
    is lean: it starts no worker before one is asked for, which would stay idle at 1 % of a core,
    nor what sends workers' output to the driver or watches for new nodes, 1 % together.
    """
    spare, node = "RAY_prestart_worker_first_driver", "ray._private.node.Node"
    with (
        patch("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False, create=True),
        patch(f"{node}.start_log_monitor", lambda *_, **__: None, create=True),
        patch(f"{node}.start_monitor", lambda *_, **__: None, create=True),
        environment(**{spare: os.environ.get(spare, "0")}),
    ):
        yield


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set some variables, and put back only these: other threads may set others meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _one_try(address: str) -> Iterator[None]:
    """Let Ray try to connect once: some 40 s if what is there is no Ray. Else it tries 20 times.

    Raises:
        OSError: nothing accepts connections there.
    """
    # what Ray makes of it: "auto" is looked up, loopback becomes this machine's address
    where = services.canonicalize_bootstrap_address(address) if "://" not in address else None
    if where is None:
        yield
        return
    try:
        socket.create_connection(services.extract_ip_port(where), timeout=10).close()
    except OSError as error:
        raise OSError(f"nothing accepts connections at {where}: {error}") from error
    with environment(RAY_gcs_server_port_wait_time_s="1"):
        yield


@dataclass(frozen=True)
class Tuning:
    """What Tune needs to run `todo` (or, if the sweep samples, its space)."""

    sweep: Sweep
    todo: Mapping[str, Run]
    store: Store
    hardware: Hardware
    engine: str
    flush_seconds: float
    show: Display
    tracker: Tracker | None

    def fit(self, datasets: Mapping[str, Dataset]) -> None:
        """Run all trials, on the Ray that runs.

        Raises:
            StorageError: results could not be written any more; the rest has not run.
        """
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the ledger has the reasons
        with environment(**QUIET):
            ship(self.sweep, [*self.todo.values(), *([self.sweep.base] if self.sweep.base else [])])
            context = Context(
                store=self.store.path,
                make=self._make(),
                hardware=self.hardware,
                datasets=_shared(datasets),
                origin={**provenance(), "commit": commit()},
                report_seconds=0.0 if self.sweep.scheduler else REPORT_SECONDS,
                flush_seconds=self.flush_seconds,
                engine=self.engine,
            )
            watch = self._watch()
            with _scratch(self.store) as folder:
                self._tuner(context, folder, watch).fit()
            if watch.lost:
                raise StorageError(watch.lost)

    def _make(self) -> Make:
        if not self.sweep.is_grid:
            return self.sweep.build
        runs = dict(self.todo)
        return lambda config: runs[config["run"]]

    def _tuner(self, context: Context, folder: Path, watch: Watch) -> tune.Tuner:
        bundles = [{}, *[self.hardware.bundle() for _ in range(self.hardware.actors)]]
        trainable = tune.with_resources(
            tune.with_parameters(Trial, context=context), tune.PlacementGroupFactory(bundles)
        )
        space = dict(self.sweep.space)
        if self.sweep.is_grid:
            space = {"run": tune.grid_search(list(self.todo))}
        most = self.hardware.trials  # Tune ignores its own limit for a generator given to it
        sampler = BasicVariantGenerator(random_state=0, max_concurrent=most or 0)
        return tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                metric=self.sweep.metric if self.sweep.scheduler or self.sweep.search_alg else None,
                mode=self.sweep.mode if self.sweep.scheduler or self.sweep.search_alg else None,
                num_samples=1 if self.sweep.is_grid else self.sweep.num_samples,
                search_alg=self.sweep.search_alg or sampler,
                scheduler=self.sweep.scheduler,
                max_concurrent_trials=most if self.sweep.search_alg else None,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: str(trial.trial_id),
            ),
            run_config=tune.RunConfig(
                name=folder.name,
                storage_path=str(folder.parent),
                failure_config=tune.FailureConfig(max_failures=RETRIES),
                callbacks=[watch],
                stop=Halt(watch),
                verbose=0,
            ),
        )

    def _watch(self) -> Watch:
        labels = self.store.manifest().labels()

        def sampled(run_id: str, values: dict[str, Label]) -> None:
            manifest = self.store.manifest()
            entry = Entry(run_id=run_id, labels=values)
            self.store.write_manifest(manifest.extended([entry]))

        return Watch(
            self.store, self._make(), self.show, self.tracker, self.hardware, labels, sampled
        )


def _shared(datasets: Mapping[str, Dataset]) -> dict[str, "ray.ObjectRef[Dataset]"]:
    """The datasets in the memory that all processes of a node share."""
    try:
        return {name: ray.put(dataset) for name, dataset in datasets.items()}
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
        needed = sum(
            part.x.nbytes for data in datasets.values() for part in (data.train, data.test)
        )
        raise ValueError(
            f"the datasets, {size(needed)}, do not fit the memory that Ray's processes share: "
            f"{str(error).splitlines()[0]}. Free /dev/shm (in docker: a larger --shm-size) and "
            "the folder of Ray's files (/tmp/ray, or RAY_TMPDIR)"
        ) from error


@contextmanager
def _scratch(store: Store) -> Iterator[Path]:
    """Tune's own folder: in the sweep's, or on this machine if that is in a store.

    Tune pickles into it; nothing is ever read from it, and it goes with the block.
    """
    if not isinstance(store.path, Path):
        with tempfile.TemporaryDirectory(prefix="raysafl-", ignore_cleanup_errors=True) as folder:
            yield Path(folder) / "tune"
        return
    try:
        yield store.path / "tune"  # with the locks of runs, perhaps held by a killed sweep's trials
    finally:
        shutil.rmtree(store.path / "tune", ignore_errors=True)


def commit(folder: Path | None = None) -> str:
    """The git commit of a folder (default: here), `-dirty` if changed; empty without git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip()
