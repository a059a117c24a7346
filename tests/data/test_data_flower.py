"""Partitioners of flwr-datasets: what clients hold is what the package itself gives."""

import sys
from typing import Any

import numpy as np
import pytest

import raysafl as fl
from raysafl.data import FlowerPartitioner, Synthetic

SEED = 42
LABELS = fl.Digits().load().train.y


def held(partition: fl.data.Partition, clients: int = 4) -> list[list[int]]:
    data = fl.Federation(clients=clients, partition=partition)
    return [own.tolist() for own in data.split(data.load(), seed=0).clients]


def by_flower(partitioner: Any, clients: int = 4) -> list[list[int]]:
    """What the package gives each client, by itself."""
    datasets = pytest.importorskip("datasets")
    rows = {"at": list(range(len(LABELS))), "label": LABELS.tolist()}
    partitioner.dataset = datasets.Dataset.from_dict(rows)
    return [sorted(partitioner.load_partition(i)["at"]) for i in range(clients)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("IidPartitioner", {}),
        ("DirichletPartitioner", {"partition_by": "label", "alpha": 0.3, "seed": SEED}),
        (
            "PathologicalPartitioner",
            {"partition_by": "label", "num_classes_per_partition": 3, "seed": SEED},
        ),
        (
            "ShardPartitioner",
            {"partition_by": "label", "num_shards_per_partition": 2, "seed": SEED},
        ),
        ("SizePartitioner", {"partition_sizes": [1, 300, 6, 1130]}),
        ("LinearPartitioner", {}),
    ],
)
# The package warns of classes that nobody holds; datasets has deprecated arguments.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_clients_hold_what_the_package_gives_them(
    name: str, options: dict[str, Any]
) -> None:
    known = pytest.importorskip("flwr_datasets.partitioner")
    given = options if name == "SizePartitioner" else {"num_partitions": 4, **options}
    expected = by_flower(getattr(known, name)(**given))
    assert held(FlowerPartitioner(name=name, options=options)) == expected


def test_without_a_seed_the_partition_is_drawn_from_the_federations() -> None:
    pytest.importorskip("flwr_datasets")
    rule = FlowerPartitioner(
        name="DirichletPartitioner", options={"partition_by": "label", "alpha": 1}
    )
    data = fl.Federation(clients=4, partition=rule, seed=None)
    dataset = data.load()
    drawn = [list(data.split(dataset, seed).clients) for seed in (0, 0, 1)]
    one, again, other = ([own.tolist() for own in clients] for clients in drawn)
    assert one == again != other
    assert sorted(row for own in one for row in own) == list(range(len(dataset.train)))
    assert fl.Federation.from_json(data.to_json()) == data


def test_natural_partitions_go_by_the_users() -> None:
    pytest.importorskip("flwr_datasets")
    rule = FlowerPartitioner(
        name="NaturalIdPartitioner", options={"partition_by": "user"}
    )
    data = fl.Federation(dataset=Synthetic(users=3), clients=3, partition=rule)
    dataset = data.load()
    for client, own in enumerate(data.split(dataset, seed=0).clients):
        users = dataset.train.users
        assert users is not None
        assert own.tolist() == np.flatnonzero(users == client).tolist()
    fewer = data.replace(clients=2)
    with pytest.raises(ValueError, match="makes 3 partitions, but there are 2 clients"):
        fewer.split(dataset, seed=0)


def test_what_the_package_refuses_is_told() -> None:
    pytest.importorskip("flwr_datasets")
    for name, options, text in [
        ("DirichletPartitoner", {}, "did you mean 'DirichletPartitioner'"),
        ("DirichletPartitioner", {"alpha": 1}, "missing .* 'partition_by'"),
        ("IidPartitioner", {"num_partitions": 0}, "IidPartitioner of flwr-datasets: "),
        # A module of the package, and a column that the samples do not have.
        ("iid_partitioner", {}, "has no 'iid_partitioner'"),
        (
            "DirichletPartitioner",
            {"partition_by": "labels", "alpha": 1},
            "DirichletPartitioner of flwr-datasets: .*labels",
        ),
    ]:
        with pytest.raises(ValueError, match=text):
            held(FlowerPartitioner(name=name, options=options))


def test_a_partitioner_of_ones_own_needs_no_name_of_the_package() -> None:
    partitioner = pytest.importorskip("flwr_datasets.partitioner")

    class EveryNth(partitioner.Partitioner):  # type: ignore[name-defined,misc]
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def load_partition(self, partition_id: int) -> Any:
            rows = range(partition_id, len(self.dataset), self.count)
            return self.dataset.select(rows)

        @property
        def num_partitions(self) -> int:
            return self.count

    class MyOwn(FlowerPartitioner):
        name: str = "EveryNth"

        def partitioner(self, clients: int, seed: int) -> Any:
            return EveryNth(clients)

    assert held(MyOwn()) == [list(range(i, len(LABELS), 4)) for i in range(4)]


def test_without_the_package_its_installation_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(ValueError, match="pip install flwr-datasets"):
        held(FlowerPartitioner(name="IidPartitioner"))
