"""Two rounds with changing cohorts against the papers' algorithms written out client by client.

The references below follow the papers' own sign: change_i = w_i - w, added to the
model.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.quadratics import (
    ALL,
    LOCAL,
    SERVER_A,
    START,
    gradient,
    play,
    train_locally,
)
from torch import Tensor

from raysafl import (
    AFL,
    MIFA,
    SAFARI,
    SCAFFOLD,
    Algorithm,
    Centralised,
    FedAdagrad,
    FedAdam,
    FedAmplify,
    FedAU,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedProx,
    FedVARP,
    FedYogi,
    Key,
    LocalTraining,
    ServerOnly,
    State,
    Train,
    Update,
)

COHORTS = [[0, 1], [1, 2], [3, 0], [1, 2, 3]]
M, ETA, K = 4, LOCAL.lr, 5


def changes(w: Tensor, ids: list[int]) -> Tensor:
    return torch.stack([train_locally(i, w) - w for i in ids])


def test_scaffold_follows_algorithm_1_with_option_2() -> None:
    x, c, own = START, torch.zeros(2), {i: torch.zeros(2) for i in ALL}
    for ids in COHORTS:
        dy, dc = [], []
        for i in ids:
            y = train_locally(i, x, LOCAL, offset=-own[i] + c)
            plus = own[i] - c + (x - y) / (K * ETA)
            dy.append(y - x)
            dc.append(plus - own[i])
            own[i] = plus
        x = x + 0.7 * torch.stack(dy).mean(0)
        c = c + len(ids) / M * torch.stack(dc).mean(0)
    state = play(SCAFFOLD(lr=0.7), COHORTS)
    torch.testing.assert_close(state.w_P, x)
    torch.testing.assert_close(state.server["c"], c)


def test_feddyn_follows_algorithm_1() -> None:
    theta, h, grad, a = START, torch.zeros(2), {i: torch.zeros(2) for i in ALL}, 0.4
    for ids in COHORTS:
        ends = []
        for i in ids:  # of f_i(w) - <grad_i, w> + a/2 |w - theta|^2
            ends.append(train_locally(i, theta, LOCAL, offset=-grad[i], prox=a))
            grad[i] = grad[i] - a * (ends[-1] - theta)
        h = h - a / M * (torch.stack(ends) - theta).sum(0)
        theta = torch.stack(ends).mean(0) - h / a
    torch.testing.assert_close(play(FedDyn(alpha=a), COHORTS).w_P, theta)


@pytest.mark.parametrize("over", ["all", "seen"])
def test_mifa_averages_the_latest_updates(over: str) -> None:
    w, g = START, {}
    for ids in COHORTS:
        g |= {i: w - train_locally(i, w) for i in ids}
        w = w - 0.5 * torch.stack([*g.values()]).sum(0) / (
            M if over == "all" else len(g)
        )
    torch.testing.assert_close(play(MIFA(lr=0.5, over=over), COHORTS).w_P, w)


def test_fedvarp_corrects_the_cohort_by_what_it_remembers_of_all() -> None:
    w, y = START, torch.zeros(M, 2, dtype=torch.float64)
    for ids in COHORTS:
        delta = -changes(w, ids)
        w = w - 0.5 * ((delta - y[ids]).mean(0) + y.mean(0))
        y[ids] = delta
    torch.testing.assert_close(play(FedVARP(lr=0.5), COHORTS).w_P, w)


def intervals(came: list[bool], cut: int) -> list[int]:
    """The participation intervals that have ended, by FedAU's definition."""
    ended, length = [], 0
    for here in came:
        length += 1
        if here or length == cut:
            ended.append(length)
            length = 0
    return ended


@pytest.mark.parametrize("cut", [2, 3, 50])
def test_fedau_weighs_by_the_mean_of_the_intervals_before_this_round(cut: int) -> None:
    w, cohorts = START, [*COHORTS, [0], [0, 3], [0], [1, 2]]
    for t, ids in enumerate(cohorts):
        step = torch.zeros(2)
        for i in ids:
            seen = intervals([i in past for past in cohorts[:t]], cut)
            step = step + (np.mean(seen) if seen else 1.0) * (train_locally(i, w) - w)
        w = w + 0.8 / M * step
    torch.testing.assert_close(play(FedAU(lr=0.8, K=cut), cohorts).w_P, w)


def test_fedamplify_amplifies_the_way_of_every_p_rounds() -> None:
    w = START
    for pair in (COHORTS[:2], COHORTS[2:]):
        start, way = w, torch.zeros(2)
        for ids in pair:
            change = changes(w, ids).mean(0)
            w, way = w + change, way + change
        w = start + 1.7 * way
    torch.testing.assert_close(play(FedAmplify(P=2, eta=1.7), COHORTS).w_P, w)


def test_afl_starts_each_client_from_a_model_of_its_own_age_and_divides_by_its_steps() -> (
    None
):
    models, delays = [START], []
    for t, ids in enumerate(COHORTS * 5):
        step = torch.zeros(2)
        for i in ids:
            delay = int(Key(0, t)("delay", i).integers(min(t, 2) + 1))
            delays.append(delay)
            stale = models[-1 - delay]
            step = step + (train_locally(i, stale) - stale) / K
        models.append(models[-1] + 3 * step / len(ids))
    assert set(delays) == {0, 1, 2}
    state = play(AFL(lr=3, max_delay=2), COHORTS * 5)
    torch.testing.assert_close(state.w_P, models[-1])
    torch.testing.assert_close(state.server["past"], torch.stack(models[-2:-4:-1]))


def test_afl_weighs_a_client_of_more_steps_no_more() -> None:
    turn = AFL(lr=2.0).round(State(START), [0, 1], Key(0, 0))
    next(turn)
    delta, one = (
        torch.tensor([[6.0, 0.0], [0.0, 1.0]], dtype=torch.float64),
        torch.ones(2),
    )
    with pytest.raises(StopIteration) as end:
        turn.send(Update(delta, torch.tensor([6, 1]), one, one, one, one))
    assert (START - end.value.value.w_P).tolist() == [1.0, 1.0]


def test_afl_with_memory_averages_the_last_mean_step_of_every_client() -> None:
    algorithm = AFL(lr=2.0, memory=True)
    state = algorithm.init(torch.zeros(1), 4)
    one = torch.ones(2)
    # Cohort, what each client returns, its number of steps, and the parameter after.
    rounds = [
        ([0, 1], [6.0, 4.0], [6, 1], -2 * (1 + 4) / 4),
        # Client 1 now has a mean step of 2, and client 0 still one of 1.
        ([1, 3], [4.0, 8.0], [2, 8], -2.5 - 2 * (1 + 2 + 1) / 4),
    ]
    for ids, deltas, steps, w in rounds:
        turn = algorithm.round(state, ids, Key(0, 0))
        next(turn)
        delta_MP = torch.tensor(deltas)[:, None]
        with pytest.raises(StopIteration) as end:
            turn.send(Update(delta_MP, torch.tensor(steps), one, one, one, one))
        state = end.value.value
        assert state.w_P.tolist() == [w]
    assert sorted(state.clients) == [0, 1, 3]


@pytest.mark.parametrize("max_delay", [0, 2])
def test_afl_remembers_steps_from_old_models_too(max_delay: int) -> None:
    models, last = [START], dict[int, Tensor]()
    for t, ids in enumerate(COHORTS * 3):
        for i in ids:
            delay = 0
            if max_delay:
                delay = int(Key(0, t)("delay", i).integers(min(t, max_delay) + 1))
            stale = models[-1 - delay]
            last[i] = (train_locally(i, stale) - stale) / K
        models.append(models[-1] + 3 * torch.stack([*last.values()]).sum(0) / M)
    algorithm = AFL(lr=3, max_delay=max_delay, memory=True)
    torch.testing.assert_close(play(algorithm, COHORTS * 3).w_P, models[-1])


def server_optimiser(optimiser: torch.optim.Optimizer, w: Tensor) -> Tensor:
    for ids in COHORTS:
        w.grad = -changes(w.detach(), ids).mean(0)
        optimiser.step()
    return w.detach()


def test_fedadagrad_is_torchs_adagrad_on_the_mean_update() -> None:
    w = START.clone().requires_grad_()
    torch_one = torch.optim.Adagrad(
        [w], lr=0.3, initial_accumulator_value=0.01, eps=0.1
    )
    ours = play(FedAdagrad(lr=0.3, tau=0.1), COHORTS).w_P
    torch.testing.assert_close(ours, server_optimiser(torch_one, w))


def test_fedadam_is_torchs_adam_on_the_mean_update_without_bias_correction() -> None:
    w = START.clone().requires_grad_()
    torch_one = torch.optim.Adam([w], lr=0.3, betas=(0.8, 0.9), eps=0.1)
    late = torch.tensor(1e6)  # so many steps that torch's bias corrections are 1
    v = torch.full_like(w, 0.01)
    torch_one.state[w] = {"step": late, "exp_avg": torch.zeros_like(w), "exp_avg_sq": v}
    ours = play(FedAdam(lr=0.3, beta1=0.8, beta2=0.9, tau=0.1), COHORTS).w_P
    torch.testing.assert_close(ours, server_optimiser(torch_one, w))


def test_fedyogi_follows_algorithm_2() -> None:
    x, m, v = START.numpy(), np.zeros(2), np.full(2, 4.0)
    for ids in COHORTS:  # v first falls, as the updates are below tau
        delta = changes(torch.from_numpy(x), ids).mean(0).numpy()
        m = 0.8 * m + 0.2 * delta
        v = v - 0.1 * delta**2 * np.sign(v - delta**2)
        x = x + 0.3 * m / (np.sqrt(v) + 2.0)
    ours = play(FedYogi(lr=0.3, beta1=0.8, beta2=0.9, tau=2.0), COHORTS)
    np.testing.assert_allclose(ours.w_P, x)
    np.testing.assert_allclose(ours.server["v"], v)


IDENTITIES: list[tuple[Algorithm, Algorithm]] = [
    (MIFA(lr=0.7), FedAvg(lr=0.7)),
    (MIFA(over="seen"), FedAvg()),
    (FedVARP(lr=0.7), FedAvg(lr=0.7)),
    (FedAU(lr=0.7), FedAvg(lr=0.7)),
    (FedAvg(lr=None), FedAvg(lr=2.0)),
    (SCAFFOLD(lr=None), SCAFFOLD(lr=2.0)),
]


@pytest.mark.parametrize(("one", "other"), IDENTITIES, ids=repr)
def test_at_full_participation_two_algorithms_are_one(
    one: Algorithm, other: Algorithm
) -> None:
    torch.testing.assert_close(play(one, [ALL] * 6).w_P, play(other, [ALL] * 6).w_P)


SAME: list[tuple[Algorithm, Algorithm]] = [
    (FedAmplify(P=2, eta=1.0), FedAvg()),
    (FedProx(prox=0.3), FedAvg(prox=0.3)),
    (FedProx(prox=0), FedAvg()),
    (FedAvgM(momentum=0.6, lr=0.5), FedAvg(momentum=0.6, lr=0.5)),
    (ServerOnly(), SAFARI(client_prob=0)),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=repr)
def test_two_algorithms_are_one_bitwise(one: Algorithm, other: Algorithm) -> None:
    assert torch.equal(play(one, COHORTS).w_P, play(other, COHORTS).w_P)


def test_afl_without_delay_and_of_equal_steps_is_fedavg_at_a_rate_per_step() -> None:
    ours = play(AFL(lr=K * 0.7), COHORTS).w_P
    torch.testing.assert_close(ours, play(FedAvg(lr=0.7), COHORTS).w_P)
    ours = play(AFL(lr=K * 0.7, memory=True), COHORTS).w_P
    torch.testing.assert_close(ours, play(MIFA(lr=0.7), COHORTS).w_P)


def test_server_only_approaches_the_servers_optimum_and_asks_no_client() -> None:
    local = LocalTraining(lr=0.5, batch_size=1, steps=1)
    models = [play(ServerOnly(server_update=local), COHORTS[:t]).w_P for t in range(5)]
    for before, after in pairwise(models):
        torch.testing.assert_close(after - SERVER_A, 0.5 * (before - SERVER_A))


def test_centralised_takes_the_mean_gradient_at_each_step() -> None:
    w = START
    for _ in range(K):
        w = w - ETA * torch.stack([gradient(i, w) for i in ALL]).mean(0)
    torch.testing.assert_close(play(Centralised(), [[2]]).w_P, w)


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [(SCAFFOLD(), 1, 1), (FedDyn(), 0, 0), (MIFA(), 0, 0)],
    ids=repr,
)
def test_only_scaffold_sends_more_than_fedavg(
    algorithm: Algorithm, up: int, down: int
) -> None:
    request = next(algorithm.round(algorithm.init(START, M), [0, 1], Key(0, 0)))
    assert isinstance(request, Train)
    assert (request.extra_up, request.extra_down) == (up, down)
