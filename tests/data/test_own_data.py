"""Data of one's own: what becomes of arrays and tables, what identifies them, what is refused."""

import gc
import pickle
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.played import played
from helpers.refused import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import raysafl as fl

X = np.arange(24.0).reshape(8, 3)
Y = np.array(["b", "a", "b", "a", "c", "c", "a", "b"])
TABLE = pd.DataFrame(
    {
        "age": [30, 41, 52, 63, 74, 35],
        "pulse": [60.5, 70.0, 65.0, 80.0, 75.0, 55.0],
        "ill": ["no", "yes", "no", "yes", "yes", "no"],
        "town": ["Genf", "Bern", "Genf", "Bern", "Bern", "Genf"],
        "split": ["train", "train", "test", "train", "train", "test"],
    }
)


def table(df: pd.DataFrame = TABLE, **options: Any) -> fl.data.InMemory:
    roles = {"label": "ill", "client": "town", "split": "split"}
    given = {**roles, "features": ["age", "pulse"], **options}
    return fl.from_pandas(df, **given)


# --- what becomes of the data


def test_arrays_keep_their_values_and_text_becomes_classes_in_order() -> None:
    dataset = fl.from_arrays(X[:6], Y[:6], test=(X[6:], Y[6:])).load()
    assert dataset.train.x.dtype == np.float32 and dataset.train.y.dtype == np.int64
    assert np.array_equal(dataset.train.x, X[:6]) and dataset.names == ("a", "b", "c")
    assert dataset.train.y.tolist() == [1, 0, 1, 0, 2, 2]
    assert dataset.test.y.tolist() == [0, 1] and dataset.num_classes == 3


@given(
    hnp.arrays(np.float64, (12, 2), elements=st.floats(-1e6, 1e6)),
    st.floats(0.1, 0.9),
    st.integers(0, 1000),
)
@settings(max_examples=25)
def test_a_test_share_is_drawn_without_losing_or_doubling_a_sample(
    x: Any, share: float, seed: int
) -> None:
    y = np.arange(12.0)
    dataset = fl.from_arrays(x, y, test_share=share, seed=seed).load()
    assert len(dataset.test) == round(12 * share)
    assert sorted([*dataset.train.y, *dataset.test.y]) == list(range(12))
    for part in (dataset.train, dataset.test):
        assert np.array_equal(part.x, x[part.y.astype(int)].astype(np.float32))


def test_images_of_bytes_stay_bytes_and_are_scaled_to_one() -> None:
    x = np.arange(256, dtype=np.uint8).reshape(4, 1, 8, 8)
    part = fl.from_arrays(x, [0, 1, 0, 1], test_share=0.5).load().train
    assert part.x.dtype == np.uint8 and part.scale == 1 / 255
    plain = fl.from_arrays(x, [0, 1, 0, 1], test_share=0.5, scale=1).load().train
    assert plain.scale == 1


@pytest.mark.parametrize("shape", [(9, 3), (9, 1, 2, 3)], ids=["columns", "images"])
def test_standardised_inputs_have_mean_0_and_deviation_1_over_the_training_samples(
    shape: tuple[int, ...],
) -> None:
    x = np.random.default_rng(0).normal(5, 3, shape)
    source = fl.from_arrays(x, np.arange(9) % 2, test_share=0.3, standardise=True)
    train = source.load().train
    inputs = train.x * train.scale + train.shift
    axis = 0 if x.ndim == 2 else None
    np.testing.assert_allclose(inputs.mean(axis), 0, atol=1e-6)
    np.testing.assert_allclose(inputs.std(axis), 1, atol=1e-6)
    x[:] = 5
    if x.ndim == 2:
        alike = fl.from_arrays(x, np.arange(9) % 2, test_share=0.3, standardise=True)
        assert not alike.load().train.x.any()


def test_a_table_gives_features_names_and_clients_by_hand() -> None:
    dataset = table().load()
    assert dataset.train.x.tolist() == [[30, 60.5], [41, 70], [63, 80], [74, 75]]
    assert dataset.train.y.tolist() == [0, 1, 1, 1] and dataset.names == ("no", "yes")
    town = dataset.train.columns["town"]
    assert town.values == ("Bern", "Genf") and town.codes.tolist() == [1, 0, 0, 0]
    assert dataset.test.columns["town"].codes.tolist() == [1, 1]
    assert table(features=["pulse", "age"]).load().train.x[0].tolist() == [60.5, 30]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([10, 9, 10, 9], ("9", "10")),
        (
            pd.to_datetime(["2024-02-01", "2023-01-01"] * 2),
            ("2023-01-01", "2024-02-01"),
        ),
        (pd.Categorical(["x", "y", "x", "y"], ["y", "x", "z"]), ("x", "y")),
        ([True, False, True, False], ("False", "True")),
        ([2.0, 1.0, 2.0, 1.0], ("1", "2")),
        (pd.array([2, 1, 2, 1], dtype="Int64"), ("1", "2")),
    ],
    ids=["whole", "dates", "categories", "booleans", "fractions", "nullable"],
)
def test_clients_are_made_of_a_column_of_any_type(
    values: Any, names: tuple[str, ...]
) -> None:
    df = pd.DataFrame({"x": [1.0, 2, 3, 4], "y": [0, 1, 0, 1], "who": values})
    source = fl.from_pandas(df, label="y", client="who", test=df)
    data = fl.Federation(dataset=source, clients=2, partition=fl.ByColumn(column="who"))
    dataset = data.load()
    split = data.split(dataset, 0)
    assert data.client_names(dataset, split) == names
    held = [np.asarray(values)[part].tolist() for part in split.clients]
    assert all(len(set(own)) == 1 for own in held) and sum(map(len, held)) == 4


@pytest.mark.parametrize(
    ("y", "target", "classes", "dtype"),
    [
        ([0.5, 1.0, 2.0, 0.0], "auto", 0, np.float32),
        ([3, 7, 3, 7], "auto", 2, np.int64),
        ([3, 7, 3, 7], "number", 0, np.float32),
        ([1.0, 0.0, 1.0, 0.0], "class", 2, np.int64),
        ([[0.5, 1], [1, 2], [2, 3], [3, 4]], "auto", 0, np.float32),
        ([[0.5], [1], [2], [3]], "auto", 0, np.float32),
        (pd.DataFrame({"ill": [3, 7, 3, 7]}), "auto", 2, np.int64),
        (pd.DataFrame({"ill": [0.5, 1, 2, 3]}), "auto", 0, np.float32),
    ],
)
def test_the_type_of_the_target_or_the_user_decides_what_is_predicted(
    y: Any, target: Any, classes: int, dtype: Any
) -> None:
    dataset = fl.from_arrays(X[:4], y, test=(X[:4], y), target=target).load()
    assert dataset.num_classes == classes and dataset.train.y.dtype == dtype
    if not classes:
        assert np.array_equal(dataset.train.y, np.squeeze(np.array(y, np.float32)))


def test_names_keep_classes_without_samples() -> None:
    names = ["cat", "dog", "fox"]
    dataset = fl.from_arrays(X[:4], [2, 0, 0, 2], test_share=0.25, names=names).load()
    assert dataset.num_classes == 3 and dataset.names == ("cat", "dog", "fox")


def test_a_csv_file_is_the_same_run_as_the_table_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TABLE.to_csv(tmp_path / "a.csv", index=False)
    TABLE.to_csv(tmp_path / "b.csv", index=False, sep=";")
    with pytest.raises(ValueError, match=r"has one column then, '.*;.*'; give sep=';'"):
        fl.from_csv(tmp_path / "b.csv", label="ill")
    options = {"label": "ill", "client": "town", "split": "split"}
    monkeypatch.setenv("RAYSAFL_DATA", str(tmp_path))
    one, two = fl.from_csv("a.csv", **options), fl.from_csv("b.csv", **options, sep=";")
    # All columns that are nothing else are the features.
    assert one == two == table()


class Pictures(TorchDataset):  # type: ignore[type-arg]
    """Six colour images of PIL with classes, as torchvision has them."""

    classes = ("red", "green")

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        return Image.new("RGB", (3, 2), ((200, 0, 0), (0, 200, 0))[i % 2]), i % 2


def test_images_of_a_torch_dataset_get_channels_first_and_its_names() -> None:
    dataset = fl.from_torch(Pictures(), Pictures()).load()
    assert dataset.train.x.shape == (6, 3, 2, 3) and dataset.train.x.dtype == np.uint8
    assert dataset.names == Pictures.classes and dataset.train.x[1, 1].min() == 200


def test_tensors_of_torch_are_the_same_run_as_their_arrays() -> None:
    x = torch.rand(10, 3)
    y = torch.arange(10) % 2
    pairs = TensorDataset(x, y)
    assert fl.from_torch(pairs, test_share=0.2) == fl.from_arrays(
        x.numpy(), y.numpy(), test_share=0.2
    )


# --- what identifies them


@given(
    hnp.arrays(np.float32, (6, 2), elements=st.floats(-100, 100, width=32)),
    st.integers(0, 11),
)
@settings(max_examples=25)
def test_equal_data_are_one_source_and_one_changed_value_is_another(
    x: Any, place: int
) -> None:
    y = np.array([0, 1, 0, 1, 0, 1])
    first = fl.from_arrays(x, y, test_share=0.5)
    assert fl.from_arrays(x.copy(), y.tolist(), test_share=0.5) == first
    changed = x.copy()
    changed.flat[place] = np.nextafter(changed.flat[place], np.float32(200))
    assert fl.from_arrays(changed, y, test_share=0.5).content != first.content


def test_labels_names_clients_split_and_scale_are_part_of_the_content() -> None:
    x = np.zeros((4, 1, 2, 2), np.uint8)
    y = [0, 1, 0, 1]
    kinds: list[dict[str, Any]] = [
        {},
        {"names": ["a", "b"]},
        {"names": ["a", "c"]},
        {"clients": ["u", "v", "u", "v"]},
        {"clients": ["u", "w", "u", "w"]},
        {"clients": {"who": ["u", "v", "u", "v"]}},
        {"scale": 1.0},
        {"target": "number"},
    ]
    contents = {fl.from_arrays(x, y, test=(x, y), **kind).content for kind in kinds}
    contents.add(fl.from_arrays(x, [1, 1, 0, 0], test=(x, y)).content)
    contents.add(fl.from_arrays(x, y, test=(x[:2], y[:2])).content)
    assert len(contents) == len(kinds) + 2


def test_the_id_of_a_run_on_fixed_data_is_always_the_same() -> None:
    source = fl.from_arrays(X, Y, test_share=0.25, name="mine")
    text = source.to_json()
    assert text == (
        f'{{"content":"{source.content}","kind":"InMemory","name":"mine","num_classes":3}}'
    )
    assert source.content == fl.from_arrays(X.tolist(), Y, test_share=0.25).content
    # Another machine must find the same digest.
    assert source.content.startswith("ea961a032cb09f53")


def test_what_the_user_does_to_the_arrays_later_changes_nothing() -> None:
    x = X.copy()
    source = fl.from_arrays(x, Y, test_share=0.25)
    before = source.load().train.x.copy()
    x[:] = -1
    assert np.array_equal(source.load().train.x, before)
    with pytest.raises(ValueError, match="read-only"):
        source.load().train.x[0] = 0


def test_equal_data_are_in_memory_once_and_go_with_their_last_source() -> None:
    x = X + 0.25
    one, two = (fl.from_arrays(x, Y, test_share=0.25) for _ in range(2))
    assert one.load().train.x is two.load().train.x
    kept = weakref.ref(one.load().train.x)
    del one, two
    gc.collect()
    assert kept() is None


def test_a_pickle_holds_no_data_and_finds_them_again() -> None:
    x = np.random.default_rng(0).normal(size=(2000, 3))
    source = fl.from_arrays(x, np.arange(2000) % 2, test_share=0.25)
    run = fl.Federation(dataset=source)
    content = pickle.dumps(run)
    assert len(content) < 3000
    again = pickle.loads(content)
    assert again == run and again.load().train.x is source.load().train.x


def test_a_configuration_without_its_data_says_to_make_the_source_again() -> None:
    make = lambda: fl.Federation(dataset=fl.from_arrays(X + 7, Y, test_share=0.25))  # noqa: E731
    data = make()
    text = data.to_json()
    content = pickle.dumps(data)
    assert fl.Federation.from_json(text) == data
    del data
    gc.collect()
    assert "make the same source again in this process" in refused(
        fl.Federation.from_json, text
    )
    # What was pickled can be read and changed; its data cannot be loaded.
    pickled = pickle.loads(content).replace(clients=3)
    assert "make the same source again" in refused(pickled.load)
    data = make()
    assert fl.Federation.from_json(text) == data
    assert data.load().train.x is pickled.load().train.x


# --- partitions by a column


def federation(clients: int, **options: Any) -> fl.Federation:
    partition = fl.ByColumn(**{"column": "town", **options})
    return fl.Federation(dataset=table(), clients=clients, partition=partition)


def test_too_few_or_too_many_clients_are_told_the_right_number() -> None:
    for clients in (1, 3):
        data = federation(clients)
        text = refused(data.split, data.load(), 0)
        assert f"{clients}" in text and "set clients=2" in text and "'town'" in text


def test_a_partition_by_a_column_that_nobody_named_leads_to_where_it_is_named() -> None:
    bare = fl.from_arrays([[1.0], [2.0]], [0, 1], test=([[1.0]], [0]))
    data = fl.Federation(dataset=bare, clients=2, partition=fl.ByColumn(column="town"))
    assert refused(data.split, data.load(), 0) == (
        "the dataset has no client column 'town': known are none. Make it with client='town' "
        "(of arrays, clients={'town': ...}), or take another partition"
    )
    # A table whose column of clients was taken for a feature.
    text = refused(fl.from_pandas, TABLE, label="ill", test_share=0.5)
    assert "if it says whose sample it is, give client='town'" in text
    # The number of clients is 10 where it is left out.
    fields = RUN | {"data": federation(10), "participation": fl.Uniform(m=12)}
    assert "there are N = 10; lower m, or give Federation(clients=...) more" in refused(
        fl.Run, **fields
    )


def test_the_largest_values_become_clients_on_request() -> None:
    data = federation(1, largest=True)
    dataset = data.load()
    split = data.split(dataset, 0)
    assert data.client_names(dataset, split) == ("Bern",)
    assert split.clients[0].tolist() == [1, 2, 3]


def test_an_unknown_column_gets_the_nearest_or_the_way_to_have_one() -> None:
    data = federation(2, column="tonw")
    assert "did you mean 'town'?" in refused(data.split, data.load(), 0)
    digits = fl.Federation(partition=fl.ByColumn(column="town"))
    assert "client='town'" in refused(digits.split, digits.load(), 0)


def test_names_of_clients_stay_with_shared_and_with_server_data() -> None:
    df = pd.concat([TABLE] * 5, ignore_index=True)
    data = fl.Federation(
        dataset=table(df),
        clients=2,
        partition=fl.ByColumn(column="town"),
        server=fl.IidServer(n0=4),
        share=0.5,
    )
    dataset = data.load()
    split = data.split(dataset, 0)
    assert data.client_names(dataset, split) == ("Bern", "Genf")


# --- what is refused


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"label": "il"}, "the table lacks the columns il: did you mean 'ill'?"),
        ({"features": ["age", "ill"]}, "'ill' is the label column and among"),
        ({"features": []}, "no feature columns are left"),
        ({"features": ["age"] * 2}, "the table of features has several columns age"),
        ({"client": ["town"] * 2}, "the table of clients has several columns town"),
        ({"features": None, "client": None}, "feature column 'town' holds text"),
        ({"split": None}, "there are no test data: give test="),
        ({"split": None, "tset": 1}, "no argument 'tset': did you mean 'test'?"),
        ({"clients": "town"}, "no argument 'clients': did you mean 'client'?"),
        ({"test_share": 0.5}, "given by split and by test_share; give one"),
        ({"split": "town", "client": None}, "holds 'Bern', 'Genf'; it may say 'train'"),
        ({"target": "numbr"}, "did you mean 'number'?"),
        ({"target": "number"}, "cannot be predicted as a number"),
        ({"split": None, "test": TABLE[["age"]]}, "the table of test lacks the col"),
        ({"split": None, "test_share": 1.5}, "test_share must be above 0 and below 1"),
        ({"split": None, "test_share": 0.01}, "the test set is empty"),
    ],
)
def test_a_mistake_in_the_roles_of_columns_is_named(
    options: dict[str, Any], told: str
) -> None:
    assert told in refused(table, **options)


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("age", [1, np.nan, 2, np.nan, 3, 4], "'age': 2 (the first in row 1)"),
        ("age", [1, 2, 3, 4, 5, np.inf], "'age': 1 (the first in row 5)"),
        ("age", [1, 2, 3, 4, 5, 1e300], "too large for float32: feature column 'age'"),
        ("age", pd.array([1, None, 3, 4, 5, 6], "Int64"), "'age': 1 (the first"),
        ("age", list("abcdef"), "text for example by pd.get_dummies"),
        ("ill", ["no", None, "no", "yes", "yes", "no"], "has 1 row without a value"),
        ("ill", ["no", 1, *["no", "yes"] * 2], "values of several types (int, str)"),
        ("ill", [0.5, np.nan, 1, 2, 3, 4], "'ill': 1 (the first in row 1)"),
        ("town", ["a", None, "a", "b", "b", None], "has 2 rows without a value"),
        ("split", ["train"] * 6, "the test set is empty"),
        ("ill", ["no", "no", "yes", "no", "no", "yes"], "in the test set: 'yes'"),
    ],
)
def test_a_bad_value_is_named_with_its_column_and_row(
    column: str, values: Any, told: str
) -> None:
    assert told in refused(table, TABLE.assign(**{column: values}))


HALF = {"test_share": 0.5}
AB = pd.DataFrame({"a": [1.0, 2], "b": [3.0, 4]})


@pytest.mark.parametrize(
    ("x", "y", "options", "told"),
    [
        (X[:3], Y[:2], {}, "x has 3 samples, but y has the shape [2]"),
        (X[:2], Y[:2], {"clients": ["a"]}, "give one value for each sample"),
        (X[:2], AB[[]], {}, "x has 2 samples, but y has the shape [2, 0]"),
        ([[1, 2], [3]], [0, 1], {}, "must have the same shape"),
        ([["a"], ["b"]], [0, 1], {}, "x must hold numbers"),
        ([1.0, 2.0], [0, 1], {}, "x.reshape(-1, 1)"),
        (pd.Series([np.nan, 1]), [0, 1], {**HALF}, "x.reshape(-1, 1)"),
        (pd.Series(["a", "b"]), [0, 1], {**HALF}, "x must hold numbers"),
        ("text", ["a"], {**HALF, "words": 2}, "x has the shape []: there are no samples"),
        (AB, [0, 1], {"test": (AB[["b", "a"]], [0, 1])}, "the same feature columns in"),
        (X[:2], AB, {"test": (X[:2], AB[["b", "a"]])}, "need the same label columns"),
        (X[:2], [0, 1], {**HALF, "names": 2.0}, "the name of each class once"),
        (X[:0], [], {}, "there are no samples"),
        (np.zeros((2, 8, 8, 3), np.uint8), [0, 1], {}, "x.transpose(0, 3, 1, 2)"),
        (X[:2], [[0, 1], [1, 0]], {**HALF}, "y.argmax(axis=1)"),
        (X[:2], [0, 2], {**HALF, "names": ["a", "b"]}, "holds the label 2 (row 1)"),
        (X[:2], [0, 1], {**HALF, "names": ["a", "a"]}, "the name of each class once"),
        (X[:2], ["a", "b"], {**HALF, "names": ["a", "b"]}, "Leave names= out"),
        (X[:4], [0, 0, 1.0, 0], {**HALF, "scale": 0}, "scale must be a finite number"),
        (X[:2], [0, 1], {"test": X}, "test must be a tuple (x, y)"),
        (X[:2], [0, 1], {"test": (X[:2, :1], [0, 1])}, "training inputs are float32"),
        (X[:2] * np.nan, [0, 1], {}, "column 0 of x: 2 (the first in row 0)"),
        (np.zeros((200, 1)), np.arange(200), HALF, "target='number'"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(
    x: Any, y: Any, options: dict[str, Any], told: str
) -> None:
    assert told in refused(fl.from_arrays, x, y, **options)


class Noisy(Pictures):
    def __getitem__(self, i: int) -> Any:
        return torch.rand(3), 0


class Triples(Pictures):
    def __getitem__(self, i: int) -> Any:
        return torch.zeros(3), 0, 1


class Ragged(Pictures):
    def __getitem__(self, i: int) -> Any:
        return torch.zeros(3 + i), 0


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (Noisy(), "Leave the random transform out"),
        (Triples(), "pairs (input, target) as its items by number"),
        (Ragged(), "all samples must have the same shape"),
        (iter([1]), "the train dataset must have a length"),
    ],
)
def test_a_torch_dataset_that_cannot_be_read_is_refused(
    dataset: Any, told: str
) -> None:
    assert told in refused(fl.from_torch, dataset, test_share=0.5)


def test_a_missing_csv_file_is_told_where_it_was_looked_for(tmp_path: Path) -> None:
    text = refused(fl.from_csv, tmp_path / "patient.csv", label="ill", split="split")
    assert f"is missing; looked for {tmp_path}" in text
    assert "must be a DataFrame" in refused(fl.from_pandas, "x.csv", label="ill")


@pytest.mark.parametrize(
    ("file", "options", "told"),
    [
        ("a.csv", {"delimeter": ","}, "'delimeter'"),
        ("a.csv", {"encoding": "utf9"}, "read as CSV: unknown encoding"),
        ("a.csv", {"chunksize": 3}, "a CSV file is read as a whole; leave chunksize="),
        ("a.csv", {"iterator": True}, "a CSV file is read as a whole; leave iterator="),
        ("a.csv.gz", {}, "a.csv.gz cannot be read as CSV: "),
        ("a.csv.zip", {}, "a.csv.zip cannot be read as CSV: "),
        ("a.csv.xz", {}, "a.csv.xz cannot be read as CSV: "),
        (None, {}, "None cannot be read as CSV: "),
    ],
)
def test_a_csv_file_that_cannot_be_read_is_named(
    file: Any, options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    if file:
        file = tmp_path / file
        TABLE.to_csv(file)
        if file.suffix != ".csv":
            file.write_bytes(file.read_bytes()[:40])
    assert told in refused(fl.from_csv, file, label="ill", **options)


# --- they train


RUN = {
    "model": fl.Logistic(),
    "algorithm": fl.FedAvg(),
    "participation": fl.participation.Full(),
    "local": fl.LocalTraining(lr=0.5, batch_size=8, epochs=2),
    "rounds": 4,
}


def last_record(run: fl.Run) -> Any:
    return played(run)[1][-1]


def accuracy(run: fl.Run) -> float:
    return float(last_record(run).test_accuracy)


def towns() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    df = pd.DataFrame(rng.normal(size=(200, 3)), columns=list("abc"))
    df["above"] = np.where(df.a > 0, "yes", "no")
    df["town"] = rng.choice(["Bern", "Genf", "Basel"], 200)
    return df


def test_a_client_per_town_is_learnt() -> None:
    df = towns()
    columns: Any = {"clients": df[["town"]], "test_share": 0.25}
    source = fl.from_arrays(df[["a", "b", "c"]], df.above, **columns)
    data = fl.Federation(
        dataset=source, clients=3, partition=fl.ByColumn(column="town")
    )
    assert accuracy(fl.Run(data=data, **RUN)) > 0.9
    assert source == fl.from_pandas(df, label="above", client="town", test_share=0.25)


def test_a_number_is_learnt_with_a_client_per_town() -> None:
    df = towns()
    df["cost"] = 3 * df.a - df.b + 1
    source = fl.from_pandas(
        df, label="cost", features=list("abc"), client="town", test_share=0.25
    )
    data = fl.Federation(
        dataset=source, clients=3, partition=fl.ByColumn(column="town")
    )
    local = fl.LocalTraining(lr=0.05, batch_size=8, epochs=5)
    run = fl.Run(
        data=data, objective=fl.objectives.Regression(), **{**RUN, "local": local}
    )
    assert last_record(run).test_loss < 0.01
    classes = run.data.replace(partition=fl.Dirichlet(alpha=1.0))
    assert "take Iid(), ByColumn(column=...)" in refused(
        classes.split, classes.load(), 0
    )


def test_the_examples_of_the_page_on_own_data_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "own_data.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    space: dict[str, Any] = {"__name__": "own_data"}
    for block in blocks:
        exec(block, space)
    assert len(blocks) == 9
    base = space["data"].load()
    split = space["data"].split(base, 0)
    own = space["some"].data
    given = np.concatenate([split.clients[0], split.clients[2]])
    assert np.array_equal(own.split(own.load(), 0).server, given)
    public = space["public"].data.load()
    assert public.outside == 40 and abs(public.train.x[-40:].mean()) < 0.5
    assert all(accuracy(space[name]) > 0.5 for name in ("run", "some", "public"))
    cohorts = fl.simulate(space["recorded"])["cohorts"].explode()
    assert [ids.tolist() for ids in cohorts] == [[1], [1, 2], [2], [2], [1]]
    for name, clients in (("data", 3), ("cameras", 4), ("artists", 2)):
        data = space[name]
        dataset = data.load()
        split = data.split(dataset, 0)
        assert len(data.client_names(dataset, split)) == clients
    assert space["regression"].objective == fl.objectives.Regression()
    assert space["regression"].data.load().num_classes == 0
