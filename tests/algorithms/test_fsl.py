"""FSL: the paper's defaults by hand, its limits, and its two forms of server learning."""

import math
from dataclasses import replace

import pytest
import torch
from helpers.quadratics import (
    ALL,
    LOCAL,
    SERVER_A,
    START,
    answer,
    drift_point,
    play,
    train_locally,
)

from raysafl import FSL, SAFARI, Algorithm, FedAvg, LocalTraining
from raysafl.algorithms import (
    MIFA,
    SCAFFOLD,
    SERVER,
    FedAmplify,
    FedAvgM,
    FSLParallel,
    Key,
    Setting,
    State,
)
from raysafl.training import ContinuedTraining, StepRate

COHORTS = [[0, 1], [1, 2], [3], [1, 2, 3]]
SETTING = Setting(num_clients=4, client_samples=1, server_samples=1, local=LOCAL)


def ready(algorithm: FSL) -> FSL:
    return algorithm.prepare(SETTING)


@pytest.mark.parametrize(
    ("num_clients", "samples", "n0", "batch", "epochs", "k", "k0"),
    [
        (10, 5000, 500, 50, 10, 100, 100),  # CIFAR-10, scenario 1
        (45, 2400, 225, 50, 11, 48, 55),  # EMNIST, scenario 1: ceil(10.67) epochs
        (1000, 50, 500, 10, 1, 5, 50),  # CIFAR-10, scenario 2
        (450, 240, 450, 50, 1, 5, 9),  # EMNIST, scenario 2
        (10, 50.4, 500, 50, 1, 2, 10),  # a mean just above one batch: two batches
    ],
)
def test_defaults_are_those_of_section_4a(
    num_clients: int, samples: float, n0: int, batch: int, epochs: int, k: int, k0: int
) -> None:
    setting = Setting(
        num_clients, samples, n0, LocalTraining(lr=0.01, batch_size=batch, epochs=1)
    )
    fsl = FSL().prepare(setting)
    assert (fsl.epochs, fsl.batch_size) == (epochs, batch)
    assert fsl.rate == pytest.approx(0.01 * k / k0)
    assert isinstance(fsl.inner, FedAvg) and fsl.inner.lr is None  # sqrt(S)


def test_defaults_cover_as_many_samples_where_local_training_is_given_in_steps() -> (
    None
):
    by_steps = LocalTraining(lr=0.01, batch_size=50, steps=48)
    by_epochs = LocalTraining(lr=0.01, batch_size=50, epochs=1)
    one, other = (
        FSL().prepare(Setting(45, 2400, 225, s)) for s in (by_steps, by_epochs)
    )
    assert (one.epochs, one.rate) == (other.epochs, other.rate)


@pytest.mark.parametrize(
    ("samples", "batch", "steps", "epochs"),
    [
        (50, 4096, 5, 5),  # five batches of 50 samples: ceil(250 / 60)
        (120, 50, 4, 3),  # batches of 50, 50, 20 and 50 samples: ceil(170 / 60)
        (120, 50, 2, 2),  # 50 and 50 samples: ceil(100 / 60)
        (49.5, 4096, 4, 4),  # the mean over clients: ceil(4 * 49.5 / 60)
    ],
)
def test_steps_count_the_samples_that_a_client_trains_on(
    samples: float, batch: int, steps: int, epochs: int
) -> None:
    local = LocalTraining(lr=0.01, batch_size=batch, steps=steps)
    fsl = FSL().prepare(Setting(10, samples, 60, local))
    server_steps = epochs * math.ceil(60 / batch)
    assert fsl.epochs == epochs
    assert fsl.rate == pytest.approx(0.01 * steps / server_steps)


def test_a_client_that_stops_at_its_passs_end_trains_on_its_samples_once() -> None:
    kept = ContinuedTraining(lr=0.01, batch_size=32, steps=10, keep_optimizer=False)
    fsl = FSL().prepare(Setting(10, 100, 20, kept))
    # Four batches of 32, 32, 32 and 4 samples: E_s = 100 / 20, with one batch a pass.
    assert fsl.epochs == 5 and fsl.rate == pytest.approx(0.01 * 4 / 5)


def test_the_servers_rate_falls_as_the_clients_does() -> None:
    falling = replace(
        SETTING,
        local=SETTING.local.replace(schedule=StepRate(milestones=[3], decay=0.1)),
    )
    fsl = FSL(rate=0.4, epochs=1).prepare(falling)
    early, late = (asked(fsl, [0], at).lr for at in (2, 3))
    assert late == pytest.approx(early / 10)


def test_pretraining_is_the_start_of_the_inner_algorithm() -> None:
    """FedAmplify amplifies the way since its start, which pre-training is no part of."""
    fsl = FSL(inner=FedAmplify(P=1, eta=5.0), gamma=0, pretrain=2, pretrain_lr=0.1)
    plain = FSL(inner=FedAvg(), gamma=0, pretrain=2, pretrain_lr=0.1)
    fsl, plain = (f.prepare(SETTING) for f in (fsl, plain))
    ends, starts = [], []
    for algorithm in (fsl, plain):
        turn = algorithm.round(algorithm.init(START, 3), [0], Key(0, 0))
        update = answer(next(turn))
        starts.append(START - update.delta_MP[0])
        request = turn.send(update)
        with pytest.raises(StopIteration) as end:
            turn.send(answer(request))
        ends.append(end.value.value.w_P)
    torch.testing.assert_close(ends[0] - starts[0], 5.0 * (ends[1] - starts[1]))


def asked(fsl: FSL, ids: list[int], at: int = 0) -> LocalTraining:
    """The server's SGD in a round of this cohort."""
    turn = fsl.round(State(START), ids, Key(0, at))
    request = next(turn)
    while request.ids != [SERVER]:
        request = turn.send(answer(request))
    assert request.local is not None
    return request.local


@pytest.mark.parametrize(("ids", "eta_0"), [([0], 0.01), ([0, 1, 2, 3], 0.02)])
def test_the_servers_rate_is_gamma_times_sqrt_s_times_eta_l_k_over_k0(
    ids: list[int], eta_0: float
) -> None:
    fsl = FSL(gamma=1.5).prepare(
        Setting(10, 5000, 500, LocalTraining(lr=0.01, batch_size=50, epochs=1))
    )
    local = asked(fsl, ids)
    assert local.lr == pytest.approx(1.5 * eta_0)
    assert (local.batch_size, local.epochs) == (50, 10)


@pytest.mark.parametrize("kind", [FSL, FSLParallel])
@pytest.mark.parametrize("inner", [FedAvg(), FedAvgM(), SCAFFOLD(), MIFA()], ids=repr)
def test_gamma_0_is_the_inner_algorithm_bitwise(
    kind: type[FSL], inner: Algorithm
) -> None:
    fsl = kind(inner=inner, gamma=0)
    a, b = play(ready(fsl), COHORTS), play(inner, COHORTS)
    assert torch.equal(a.w_P, b.w_P) and a.server.keys() == b.server.keys()
    assert not fsl.uses_server_data and kind(inner=inner).uses_server_data


def test_server_learning_draws_the_limit_from_the_clients_to_the_servers_optimum() -> (
    None
):
    line = [
        play(ready(FSL(inner=FedAvg(), gamma=gamma)), [ALL] * 200).w_P
        for gamma in (0.0, 0.1, 0.4, 1.5)
    ]
    torch.testing.assert_close(line[0], drift_point())
    away = [float((w_P - SERVER_A).norm()) for w_P in line]
    assert away == sorted(away, reverse=True) and away[-1] < away[0] / 2


def test_pretraining_comes_once_before_the_first_round_and_leaves_no_trace() -> None:
    trained = train_locally(
        SERVER, START, LocalTraining(lr=0.01, batch_size=1, epochs=30)
    )
    plain = ready(FSL(inner=FedAvgM()))
    pretrained = plain.replace(pretrain=30)
    before = pretrained.init(START, 4)
    assert "pretrain" in before.server
    ours = play(pretrained, COHORTS)
    start = State(trained, plain.init(START, 4).server)
    torch.testing.assert_close(ours.w_P, play(plain, COHORTS, state=start).w_P)
    assert ours.server.keys() == {"v"}


def test_pretraining_waits_inside_safari_for_the_first_client_round() -> None:
    safari = SAFARI(
        inner=FSL(pretrain=3), client_prob=0.5, server_update=LOCAL
    ).prepare(SETTING)
    kinds, state = [], safari.init(START, 4)
    for t in range(12):
        before = "pretrain" in state.server
        state = play(safari, [[0, 1]], state=state, first=t)
        client_round = Key(0, t)("safari").random() < 0.5
        kinds.append(client_round)
        assert ("pretrain" in state.server) == (before and not client_round)
    assert True in kinds and False in kinds
