"""The choice of an engine: measured once, kept, and never a wrong one."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from raysafl import CNN, MLP, CharLSTM, Logistic, Model
from raysafl.models import FlatModel
from raysafl.training.engine_choice import (
    ENGINES,
    cache_file,
    choose_engine,
    make_engine,
)
from raysafl.training.engines import Gradients, Loop
from raysafl.training.linear import Fused

X_NB = torch.rand(3, 5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y_NB = torch.arange(15).view(3, 5) % 4


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSAFL_CACHE", str(tmp_path / "cache"))


def flat(model: Model) -> FlatModel:
    return FlatModel(model, (1, 8, 8), 4)


def test_linear_and_recurrent_models_need_no_measurement() -> None:
    tokens = torch.zeros(1, 2, 80, dtype=torch.int64)
    assert choose_engine(flat(Logistic()), X_NB, Y_NB) == "fused"
    assert (
        choose_engine(FlatModel(CharLSTM(), (80,), 90), tokens, Y_NB[:1, :2]) == "loop"
    )
    assert not cache_file().exists()


def test_a_choice_is_measured_once_and_kept_for_this_model_and_shape() -> None:
    first = choose_engine(flat(MLP()), X_NB, Y_NB)
    (key,) = json.loads(cache_file().read_text())
    times = (
        {"loop": 2.0, "vmap": 1.0} if first == "loop" else {"loop": 1.0, "vmap": 2.0}
    )
    cache_file().write_text(json.dumps({key: times}))
    assert choose_engine(flat(MLP()), X_NB, Y_NB) == min(times, key=times.get) != first
    choose_engine(flat(CNN()), X_NB, Y_NB)
    choose_engine(flat(MLP()), X_NB[:, :4], Y_NB[:, :4])
    assert len(json.loads(cache_file().read_text())) == 3


def test_a_damaged_file_is_measured_anew() -> None:
    cache_file().parent.mkdir(parents=True)
    for text in ("{", "[1]"):
        cache_file().write_text(text)
        assert choose_engine(flat(MLP()), X_NB, Y_NB) in ("loop", "vmap")


def test_a_faster_engine_with_wrong_gradients_is_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wrong(Loop):
        def gradients(
            self,
            w_TP: Tensor,
            x_TB: Tensor,
            y_TB: Tensor,
            weight_TB: Tensor,
            seed_T: Tensor | None,
        ) -> Gradients:
            return Gradients(torch.zeros_like(w_TP), torch.zeros(y_TB.shape), y_TB == 0)

    monkeypatch.setitem(ENGINES, "vmap", Wrong)
    assert choose_engine(flat(CNN()), X_NB, Y_NB) == "loop"


def test_an_engine_is_measured_on_no_more_samples_than_it_stacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[torch.Size]()

    class Watched(Loop):
        def gradients(
            self,
            w_TP: Tensor,
            x_TB: Tensor,
            y_TB: Tensor,
            weight_TB: Tensor,
            seed_T: Tensor | None,
        ) -> Gradients:
            seen.append(y_TB.shape)
            return super().gradients(w_TP, x_TB, y_TB, weight_TB, seed_T)

    monkeypatch.setitem(ENGINES, "loop", Watched)
    for batch in (5, 1000, 5000):
        choose_engine(
            flat(MLP()), torch.rand(1, batch, 1, 8, 8), torch.zeros(1, batch).long()
        )
    assert list(dict.fromkeys(seen)) == [(8, 5), (4, 1000), (1, 5000)]


def test_gradients_that_are_no_numbers_leave_the_loop() -> None:
    assert choose_engine(flat(MLP()), X_NB * float("nan"), Y_NB) == "loop"


class Branching(Model):
    """vmap does not allow a branch on data."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(64, num_classes)

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(x.flatten(1) * (2 if x.sum() > 0 else 1))

        return Net()


def test_a_model_that_vmap_cannot_run_is_trained_in_a_loop() -> None:
    assert choose_engine(flat(Branching()), X_NB, Y_NB) == "loop"
    (times,) = json.loads(cache_file().read_text()).values()
    assert list(times) == ["loop"]


def test_an_engine_that_is_unknown_or_not_for_the_model_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"no engine 'fusd'; did you mean 'fused'\? .known: auto,"
    ):
        make_engine("fusd", flat(Logistic()))
    with pytest.raises(
        ValueError, match="'fused' is for float32 models of one linear layer"
    ):
        make_engine("fused", flat(MLP(hidden=[4])))
    assert isinstance(make_engine("fused", flat(Logistic())), Fused)
