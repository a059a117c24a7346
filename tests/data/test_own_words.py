"""Words and tags of one's own: which are known, what becomes of them, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.refused import refused
from helpers.small_data import png
from hypothesis import given, settings
from hypothesis import strategies as st

import raysafl as fl

POSTS = pd.DataFrame(
    {
        "user": ["ann", "bo", "ann", "bo"],
        "title": ["sort a list", "a loop", "list", "new new new"],
        "tokens": ["how to sort", "", "a  list", "new"],
        "tags": ["python | sort", "java", "python", "new|new|java"],
        "split": ["train", "train", "train", "test"],
    }
)


def posts(df: pd.DataFrame = POSTS, **options: Any) -> fl.data.Dataset:
    roles = {"label": "tags", "target": "tags", "features": ["title", "tokens"]}
    given = {**roles, "words": 10_000, **options}
    return fl.from_pandas(df, **{"client": "user", "split": "split", **given}).load()


def test_words_and_tags_are_numbered_by_how_often_training_rows_have_them() -> None:
    dataset = posts()
    # a 3, list 3, sort 2, how 1, loop 1, to 1; equals by the alphabet; "new" is not known
    assert dataset.train.x.tolist() == [
        [3, 1, 2, 4, 6, 3],
        [1, 5, 0, 0, 0, 0],
        [2, 1, 2, 0, 0, 0],
    ]
    assert dataset.test.x.tolist() == [[-1, -1, -1, -1, 0, 0]]
    assert dataset.targets == ("python", "java", "sort")
    assert dataset.train.y.tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert dataset.test.y.tolist() == [[0, 1, 0]]
    assert dataset.train.x.dtype == np.int64 and dataset.train.y.dtype == np.float32
    assert dataset.num_classes == 0
    assert dataset.train.columns["user"].values == ("ann", "bo")


def test_fewer_words_are_the_most_frequent_ones() -> None:
    some, every = posts(words=np.int64(2)), posts()
    beyond = np.where(every.train.x > 2, -1, every.train.x)
    assert np.array_equal(some.train.x, beyond)


def test_words_and_tags_may_be_named() -> None:
    dataset = posts(words=["new", "list"], names=["sort", "rust"])
    assert dataset.train.x.tolist()[0] == [-1, -1, 2, -1, -1, -1]
    assert dataset.test.x.tolist() == [[1, 1, 1, 1, 0, 0]]
    assert dataset.targets == ("sort", "rust")
    assert dataset.train.y.tolist() == [[1, 0], [0, 0], [0, 0]]


def test_five_hundred_tags_are_predicted_unless_they_are_named() -> None:
    many = pd.concat(
        [POSTS, *[POSTS.assign(tags=f"t{i:03d}|java") for i in range(510)]]
    )
    dataset = posts(many)
    # java, and 499 of the 510 tags that three rows have each; two rows have python
    assert dataset.train.y.shape == (3 * 511, 500) and dataset.targets[0] == "java"
    assert {"t000", "t498"} < {*dataset.targets} and "t499" not in dataset.targets


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=4), min_size=2))
@settings(max_examples=25, deadline=None)
def test_tags_are_read_back_from_the_targets(lists: list[list[str]]) -> None:
    y = ["|".join(own) for own in [*lists, ["a"]]]
    x = np.arange(2.0 * len(y)).reshape(-1, 2)
    dataset = fl.from_arrays(x, y, test=(x, y), target="tags").load()
    names = np.array(dataset.targets)
    assert [set(names[row == 1]) for row in dataset.train.y] == [
        set(own) for own in [*lists, ["a"]]
    ]
    assert np.array_equal(dataset.train.y, dataset.test.y)


def test_equal_posts_are_the_same_data_from_any_file(tmp_path: Path) -> None:
    options: Any = {"label": "tags", "target": "tags", "client": "user"}
    options |= {"features": ["tokens"], "words": 5}
    train, test = POSTS[:3], POSTS[3:]
    made = [fl.from_pandas(train, test=test, **options)]
    train.to_csv(tmp_path / "posts.csv", index=False)
    test.to_csv(tmp_path / "test.csv", index=False)
    file, other = tmp_path / "posts.csv", tmp_path / "test.csv"
    made.append(fl.from_csv(file, test=other, keep_default_na=False, **options))
    train.to_parquet(tmp_path / "train.parquet")
    test.to_parquet(tmp_path / "test.parquet")
    made.append(fl.from_parquet(tmp_path, **options))
    assert made[0] == made[1] == made[2]


def test_images_in_parquet_have_tags(tmp_path: Path) -> None:
    image = {"bytes": png(np.full((4, 4), 7, np.uint8))}
    table = pd.DataFrame({"image": [image] * 4})
    table.assign(label=["x|y", "", "y", "z"]).to_parquet(tmp_path / "train.parquet")
    dataset = fl.from_parquet(tmp_path, target="tags", test_share=0.25, seed=1).load()
    assert dataset.train.x.shape == (3, 1, 4, 4) and set(dataset.targets) <= set("xyz")
    assert dataset.train.y.shape == (3, len(dataset.targets))


def test_columns_of_zero_and_one_are_labels_too() -> None:
    table = pd.DataFrame({"age": [1, 2], "ill": [0, 1], "old": [1, 1]})
    dataset = fl.from_pandas(table, label=["ill", "old"], test=table).load()
    assert dataset.targets == ("ill", "old")
    assert dataset.train.y.tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"df": POSTS.assign(tags=[np.nan, *"abc"])}, "no text in row 0; '' stands"),
        ({"df": POSTS.assign(title=[*"ab", 3.5, "c"])}, "no text in row 2; '' stands"),
        ({"df": POSTS.assign(tags="")}, "[] are the known entries of the label column"),
        ({"names": []}, "[] are the known entries of the label column 'tags'; give"),
        ({"names": ["a", "b", "a"]}, "['a', 'b', 'a'] are the known entries"),
        ({"words": "sort"}, "'sort' are the known entries of the text; give a whole"),
        ({"words": 0}, "[] are the known entries of the text; give a whole number"),
        ({"words": 2.5}, "2.5 are the known entries of the text; give a whole number"),
        ({"words": True}, "True are the known entries of the text; give a whole"),
        ({"words": [["a"]]}, "[['a']] are the known entries of the text; give a whole"),
        ({"words": ["a", 2]}, "['a', 2] are the known entries of the text; give a"),
        ({"names": 2.0}, "2.0 are the known entries of the label column 'tags'; give"),
        ({"names": ["rust"]}, "no training sample has any of them; the most frequent"),
        ({"words": ["new"]}, "the most frequent ones there are 'a', 'list', 'sort'"),
        ({"standardise": True}, "words= is for text, which standardise= does not fit"),
    ],
)
def test_what_cannot_be_read_is_refused(options: dict[str, Any], message: str) -> None:
    assert message in refused(posts, **options)
