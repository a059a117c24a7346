"""Algorithms of the user's own in a group: whatever they do, each replicate has its own numbers.

Some can be carried out once for all replicates of a group, and some cannot, because they
look at single clients or values. The tests do not ask which: the numbers have to be those
of each replicate alone.
"""

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from helpers.lifted import Pack, alone, assert_equal_to_themselves_alone, differences
from torch import Tensor

import raysafl as fl
from raysafl.algorithms import SCAFFOLD, FedAdam, Key, Round, State, Update
from raysafl.core.algorithm import CountSamples
from raysafl.core.participation import Cohort, Participation
from raysafl.participation import Bernoulli, Full
from raysafl.simulation import lifting

SEEDS = range(6)


def group_of(
    base: fl.Run, algorithm: fl.Algorithm, **changes: Any
) -> dict[str, fl.Run]:
    """Runs that differ in their seeds alone, to each of which five clients come."""
    fixed = {"data.partition": fl.Iid(), "participation": fl.Uniform(m=5)}
    run = base.replace({"algorithm": algorithm, "replicates": 1, **fixed, **changes})
    return {str(seed): run.replace(seed=seed) for seed in SEEDS}


# Ways to make one step of the updates of ten clients, which is more than torch adds up in
# one turn: some round otherwise where many replicates are computed together.
Rule = Callable[[Update], Tensor]


def by_norm(update: Update) -> Tensor:
    """Updates of at most norm 0.1."""
    norm_M1 = update.delta_MP.norm(dim=1, keepdim=True)
    return (update.delta_MP * (0.1 / norm_M1).clamp_max(1)).mean(0)


def krum(update: Update) -> Tensor:
    """The update that is next to all others."""
    distance_MM = torch.cdist(update.delta_MP, update.delta_MP)
    return update.delta_MP[distance_MM.sum(1).argmin()]


def trimmed(update: Update) -> Tensor:
    """The mean without the two largest and the two smallest numbers."""
    return update.delta_MP.sort(0).values[2:-2].mean(0)


def in_a_loop(update: Update) -> Tensor:
    """The sum, one client after the other."""
    step_P = torch.zeros_like(update.delta_MP[0])
    for delta_P, steps in zip(update.delta_MP, update.steps_M, strict=True):
        step_P += delta_P / steps
    return step_P / len(update.delta_MP)


def weights_of(update: Update) -> Tensor:
    """A weight for each client, which depends on its loss."""
    return torch.softmax(-update.loss_M.float(), 0)


def last_bits(number: Tensor) -> Tensor:
    """What is lost of a number of 64 bits where it becomes one of 32."""
    return 1e8 * (number - number.float())


RULES: dict[str, Rule] = {
    "mean": lambda u: u.delta_MP.mean(0),
    "sum": lambda u: u.delta_MP.sum(0) / len(u.delta_MP),
    "median": lambda u: u.delta_MP.median(0).values,
    "standard deviation": lambda u: u.delta_MP.mean(0) / (1 + u.delta_MP.std(0)),
    "variance": lambda u: u.delta_MP.mean(0) - u.delta_MP.var(0),
    "product with weights": lambda u: weights_of(u) @ u.delta_MP,
    "product of matrices": lambda u: (weights_of(u)[None] @ u.delta_MP)[0],
    "einsum": lambda u: torch.einsum("m,mp->p", weights_of(u), u.delta_MP),
    "product and sum": lambda u: (weights_of(u)[:, None] * u.delta_MP).sum(0),
    "dot": lambda u: u.delta_MP[0] * torch.dot(u.delta_MP[1], u.delta_MP[2]),
    "norm of each": by_norm,
    "norm of all": lambda u: u.delta_MP.mean(0) / (1 + u.delta_MP.norm()),
    "Krum": krum,
    "trimmed mean": trimmed,
    "quantile": lambda u: u.delta_MP.quantile(0.3, dim=0),
    "largest": lambda u: u.delta_MP.topk(3, 0).values.mean(0),
    "running sum": lambda u: u.delta_MP.cumsum(0)[-2] / len(u.delta_MP),
    "logarithms": lambda u: u.delta_MP.abs().log1p().mean(0) * u.delta_MP[0].sign(),
    "double": lambda u: u.delta_MP.double().mean(0).float(),
    "least loss": lambda u: u.delta_MP[u.loss_M.argmin()],
    "best of a mask": lambda u: u.delta_MP[u.loss_M <= u.loss_M.median()].mean(0),
    "in a loop": in_a_loop,
    "where": lambda u: torch.where(u.delta_MP > 0, u.delta_MP, 0.0).sum(0) / 5,
    "stacked": lambda u: torch.stack([u.delta_MP[0], u.delta_MP[1:].mean(0)]).mean(0),
    "rates": lambda u: (u.delta_MP / u.rate_M[:, None]).mean(0) * u.rate_M.mean(),
    "numpy": lambda u: torch.from_numpy(np.median(u.delta_MP.numpy(), 0)),
    "numbers": lambda u: u.delta_MP.mean(0) * math.tanh(float(u.loss_M.sum())),
    "a list": lambda u: u.delta_MP[int(np.argmax(u.loss_M.tolist()))],
    "a value decides": lambda u: (
        u.delta_MP.mean(0) * (0.5 if u.delta_MP.norm() > 0.4 else 1.0)
    ),
    "an item": lambda u: u.delta_MP.mean(0) * u.accuracy_M[0].item(),
    "spread of the losses": lambda u: u.delta_MP.mean(0) * last_bits(u.loss_M.std()),
    "norm of the losses": lambda u: (
        u.delta_MP.mean(0)
        * last_bits(u.loss_M.norm() + u.loss_M.sum() + u.loss_M.mean())
    ),
    "chosen columns": lambda u: (
        u.delta_MP.mean(0) + u.delta_MP[:, u.delta_MP.abs().argmax(1)].sum()
    ),
    "chosen rows": lambda u: u.delta_MP[u.delta_MP.argmax(0)[:7]].sum(0) / 7,
    "vmap": lambda u: torch.vmap(lambda d_P: d_P / (1 + d_P.norm()))(u.delta_MP).mean(
        0
    ),
    "cubes": lambda u: (u.delta_MP**3).mean(0) + (u.delta_MP**1.5).nan_to_num().sum(0),
    "columns": lambda u: u.delta_MP.T.contiguous().sum(1) / len(u.delta_MP),
    "every third": lambda u: u.delta_MP[:, ::3].sum() * u.delta_MP[::2].mean(0),
    "all numbers": lambda u: u.delta_MP.sum() * u.delta_MP.mean() + u.delta_MP[0],
    "exponentials": lambda u: (u.delta_MP.exp() - 1).mean(0),
    "fused": lambda u: torch.addcmul(u.delta_MP[0], u.delta_MP[1], u.delta_MP[2]),
    "between": lambda u: torch.lerp(u.delta_MP[0], u.delta_MP[1], 0.3),
    "a factor in a sum": lambda u: u.delta_MP[0].add(u.delta_MP[1], alpha=0.3),
    "singular values": lambda u: u.delta_MP.mean(0) / torch.linalg.matrix_norm(u[0], 2),
}


class ByRule(fl.Algorithm):
    """One step by a rule of `RULES`."""

    rule: str

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update: Update = yield fl.Train(state.w_P, ids)
        return replace(state, w_P=state.w_P - RULES[self.rule](update))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_for_the_updates_of_ten_clients_gives_each_replicate_its_own_bits(
    rule: str, tiny: fl.Run
) -> None:
    runs = group_of(tiny, ByRule(rule=rule), participation=Full(), rounds=3)
    assert_equal_to_themselves_alone(runs)


def test_all_rules_have_their_bits_where_cohorts_have_different_sizes(
    tiny: fl.Run,
) -> None:
    policy = Bernoulli(rate=0.8)
    runs = {
        f"{rule} {seed}": run
        for rule in RULES
        for seed, run in group_of(
            tiny, ByRule(rule=rule), participation=policy, rounds=3
        ).items()
    }
    assert_equal_to_themselves_alone(runs)


class OneById(fl.Algorithm):
    """Looks at single ids."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, [i for i in ids if i % 2 == 0] or ids)
        return replace(state, w_P=state.w_P - update.delta_MP.mean(0))


class Newcomers(fl.Algorithm):
    """Remembers who has come, in a tensor, and looks clients up in it."""

    def init(self, w_P: Tensor, num_clients: int) -> State:
        return State(w_P, {"seen": torch.zeros(num_clients, dtype=torch.bool)})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        seen_N = state.server["seen"].clone()
        new = [i for i in ids if not seen_N[i]]
        seen_N[torch.tensor(ids)] = True
        update = yield fl.Train(state.w_P, ids)
        step_P = update.delta_MP.sum(0) / (len(ids) + len(new))
        return replace(state, w_P=state.w_P - step_P, server={"seen": seen_N})


class OwnRows(fl.Algorithm):
    """Keeps a vector of each client in its dictionary, as `State` allows."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, ids)
        rows = dict(zip(ids, update.delta_MP.clone(), strict=True))
        clients = {**state.clients, **rows}
        step_P = sum(clients.values()) / len(clients)
        return State(state.w_P - step_P, state.server, clients)


class Integers(fl.Algorithm):
    """Draws a whole number, a permutation and a normal number."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        chosen = int(key("which").integers(len(ids)))
        order = key("order").permutation(len(ids))
        update = yield fl.Train(state.w_P, ids)
        step_P = update.delta_MP[order][chosen] * (1 + 0.1 * key("scale").normal())
        return replace(state, w_P=state.w_P - step_P)


class OneStream(fl.Algorithm):
    """Draws from one generator more than once, and calculates with what it draws."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        stream = key("stream")
        first, second = stream.random(), stream.random()
        several = stream.random(3)
        update = yield fl.TrainMean(state.w_P, ids)
        factor = 1 if 2 * first > 0.9 or not second < 0.4 else 0.5 + several.sum()
        return replace(state, w_P=state.w_P - factor * update.delta_P * min(second, 1))


class OfEachClient(fl.Algorithm):
    """Draws for each client."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        kept = [i for i in ids if key("kept", i).random() < 0.7] or list(ids)
        update = yield fl.TrainMean(state.w_P, kept)
        return replace(state, w_P=state.w_P - update.delta_P)


class Noise(fl.Algorithm):
    """Draws by a generator of torch."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        noise_P = torch.randn(state.w_P.shape, generator=key.torch("noise"))
        return replace(state, w_P=state.w_P - update.delta_P + 0.001 * noise_P)


class InPlace(fl.Algorithm):
    """Writes into its update and its state."""

    def init(self, w_P: Tensor, num_clients: int) -> State:
        return State(w_P, {"v": torch.zeros_like(w_P)})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, ids)
        update.delta_MP.mul_(0.5)
        update.delta_MP[0] += 0.001
        velocity_P = state.server["v"]
        velocity_P.mul_(0.9).add_(update.delta_MP.mean(0))
        state.w_P.sub_(velocity_P)
        return state


class InPlaceBeforeAFork(fl.Algorithm):
    """Writes into what it was given, and branches on a draw afterwards."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, ids)
        update.delta_MP.mul_(0.5)
        state.w_P.sub_(update.delta_MP.mean(0))
        if key("again").random() < 0.5:
            more = yield fl.TrainMean(state.w_P, ids)
            state.w_P.sub_(more.delta_P)
        return state


class Forks(fl.Algorithm):
    """Branches three times, with requests of different kinds and numbers between."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        sizes_M = yield CountSamples(ids)
        update = yield fl.TrainMean(state.w_P, ids, weight_M=sizes_M)
        w_P = state.w_P - update.delta_P
        if key("again").random() < 0.5:
            update = yield fl.TrainMean(w_P, ids, weight_M=update.loss_M)
            w_P = w_P - update.delta_P
            if 0.3 < key("thrice").random():
                offset_MP = 0.01 * w_P.expand(len(ids), -1)
                update = yield fl.Train(w_P, ids, prox=0.1, offset_MP=offset_MP)
                w_P = w_P - 0.5 * update.delta_MP.mean(0)
        elif key("other").random() >= 0.5:
            own = fl.LocalTraining(lr=0.03, batch_size=16, steps=2)
            update = yield fl.Train(w_P, ids, local=own, extra_up=1)
            w_P = w_P - update.delta_MP[0]
        return replace(state, w_P=w_P)


class OwnStarts(fl.Algorithm):
    """Lets clients start from places of their own, with offsets of their own."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        factor_M1 = torch.arange(len(ids))[:, None] / 100
        start_MP = state.w_P * (1 + factor_M1)
        offset_MP = 0.01 * (state.w_P.expand(len(ids), -1) + factor_M1)
        update = yield fl.Train(state.w_P, ids, offset_MP=offset_MP, w_MP=start_MP)
        end_MP = start_MP - update.delta_MP
        return replace(state, w_P=end_MP.mean(0))


class CatchesAll(fl.Algorithm):
    """Has a way out if a number cannot be read, and if a draw cannot be compared."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, ids)
        try:
            factor = float(update.loss_M.mean())
        except Exception:
            factor = 0.0
        try:
            if key("caught").random() < 0.5:
                factor /= 2
        except BaseException:
            factor = 0.0
        return replace(state, w_P=state.w_P - factor * update.delta_MP.mean(0))


class Around(fl.Algorithm):
    """Carries out a round of SCAFFOLD, and moves its result."""

    def init(self, w_P: Tensor, num_clients: int) -> State:
        return SCAFFOLD().init(w_P, num_clients)

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        after: State = yield from SCAFFOLD().round(state, ids, key)
        if key("around").random() < 0.5:
            return after
        return replace(after, w_P=(state.w_P + after.w_P) / 2)


class Grows(fl.Algorithm):
    """Has a state whose shapes and types change from round to round."""

    def init(self, w_P: Tensor, num_clients: int) -> State:
        return State(w_P, {"past": w_P.new_empty(0, len(w_P)), "n": torch.tensor(0)})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        past_AP = torch.cat([update.delta_P[None], state.server["past"]])[:3]
        count = state.server["n"] + len(ids)
        server = {"past": past_AP, "n": count}
        if key("new").random() < 0.3:
            server["extra"] = past_AP.double().mean(0)
        return replace(state, w_P=state.w_P - past_AP.mean(0), server=server)


class OwnMoment(FedAdam):
    """A part of one of raysafl's own algorithms, which goes by the largest number."""

    def second(self, v_P: Tensor, d_P: Tensor) -> Tensor:
        return torch.maximum(self.beta2 * v_P, d_P.abs().max() * d_P.abs())


class LaterById(fl.Algorithm):
    """Looks at single ids in its third round, in some seeds, when it has written in place."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, ids)
        state.w_P.sub_(update.delta_MP.mean(0))
        update.delta_MP.zero_()
        if key.round == 2 and key("later").random() < 0.6:
            update = yield fl.Train(state.w_P, ids[:2])
            state.w_P.sub_(update.delta_MP[0])
        return state


class Arrays(fl.Algorithm):
    """Makes arrays and texts of its ids."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        odd_M = np.asarray(ids) % 2
        drawn = key(f"of {ids}").random()
        update = yield fl.Train(state.w_P, ids)
        kept_MP = update.delta_MP * torch.from_numpy(1 + odd_M)[:, None]
        factor = 0.5 if drawn < 0.5 else 1.0
        return replace(state, w_P=state.w_P - factor * kept_MP.mean(0))


class TwoDraws(fl.Algorithm):
    """Compares draws with each other."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        step_P = update.delta_P
        if key("one").random() < key("other").random():
            step_P = step_P / 2
        return replace(state, w_P=state.w_P - step_P)


class Outcomes(fl.Algorithm):
    """Asks whether the outcomes of comparisons are True, and counts them."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        step_P = update.delta_P
        if (key("third").random() < 0.5) == True:  # noqa: E712
            step_P = step_P / 3
        if bool(key("fourth").random() < 0.5) is False:
            step_P = step_P / 5
        outcomes = [key(f"{i}").random() < 0.5 for i in range(3)]
        step_P = step_P * (1 + outcomes.count(True))
        return replace(state, w_P=state.w_P - step_P)


class AgainstALoss(fl.Algorithm):
    """Compares a draw with a value of a tensor."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        factor = 1.0
        if key("loss").random() < update.loss_M.mean() / 4:
            factor = 0.5
        if key("half").random() < torch.tensor(0.5):
            factor *= 0.75
        return replace(state, w_P=state.w_P - factor * update.delta_P)


class Constants(fl.Algorithm):
    """Returns tensors that do not depend on the replicate, and writes into them later."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        if key.round == 1:
            w_P = torch.zeros(len(state.w_P))
            server = {"n": torch.tensor(1.0), "v": torch.ones(3)}
            return replace(state, w_P=w_P, server=server)
        server = dict(state.server)
        if server:
            server["n"].add_(update.loss_M.float().mean())
            server["v"][1] = update.loss_M[0]
        return replace(state, w_P=state.w_P - update.delta_P, server=server)


class Double(fl.Algorithm):
    """Computes in float64, and keeps its parameters so."""

    def init(self, w_P: Tensor, num_clients: int) -> State:
        return State(w_P.double())

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P.float(), ids)
        step_P = update.delta_MP.double().mean(0) / 3
        return replace(state, w_P=state.w_P - step_P * update.loss_M.mean())


class Types(fl.Algorithm):
    """Asks of what types things are."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        factor = 1.0 if isinstance(ids, list) else 0.1
        factor *= 1.0 if isinstance(key, Key) else 0.3
        update = yield fl.TrainMean(state.w_P, ids)
        factor *= 1.0 if update.delta_P.is_contiguous() else 0.2
        return replace(state, w_P=state.w_P - factor * update.delta_P)


class Texts(fl.Algorithm):
    """Writes ids, its key and a draw into texts, and hashes the key."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        draw = key("text").random()
        texts = {0: f"{ids}", 1: f"{key}", 2: str(draw < 0.5), 3: f"{draw}"}
        text = texts.get(key.round, str(hash(key)))
        return replace(state, w_P=state.w_P - update.delta_P / sum(map(ord, text)))


class Recalls(fl.Algorithm):
    """Remembers its clients by `recall` and `remember`, in some rounds, and writes in place."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        row_MP = state.recall(ids)
        update = yield fl.Train(state.w_P, ids, offset_MP=0.1 * row_MP)
        row_MP.mul_(0.5).add_(update.delta_MP)
        w_P = state.w_P - row_MP.mean(0)
        if key("forgets").random() < 0.3:
            return replace(state, w_P=w_P)
        return replace(state, w_P=w_P, clients=state.remember(ids, row_MP))


class RecallsSome(fl.Algorithm):
    """Remembers some of its clients, and others than it recalls."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, ids)
        row_MP = state.recall(ids[1:])
        w_P = state.w_P - update.delta_MP.mean(0) - 0.01 * row_MP.sum(0)
        clients = state.remember(ids[:2], update.delta_MP[:2])
        return replace(state, w_P=w_P, clients=clients)


class Powers(fl.Algorithm):
    """Takes powers of its fields, whose last bits are others in Python and in torch."""

    lr: float = 0.7
    beta: float = 0.9

    def init(self, w_P: Tensor, num_clients: int) -> State:
        return State(w_P, {"power": torch.ones((), dtype=torch.float64)})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        power = state.server["power"] * self.lr**3
        w_P = state.w_P - update.delta_P * (1 - self.beta) * self.lr / 3
        return replace(state, w_P=w_P, server={"power": power})


ALGORITHMS: list[fl.Algorithm] = [
    OneById(),
    Newcomers(),
    OwnRows(),
    Integers(),
    OneStream(),
    OfEachClient(),
    Noise(),
    InPlace(),
    InPlaceBeforeAFork(),
    Forks(),
    OwnStarts(),
    CatchesAll(),
    Around(),
    Grows(),
    OwnMoment(),
    LaterById(),
    Arrays(),
    TwoDraws(),
    Outcomes(),
    AgainstALoss(),
    Constants(),
    Double(),
    Types(),
    Texts(),
    Recalls(),
    RecallsSome(),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_an_algorithm_of_the_user_s_gives_each_replicate_its_own_bits(
    algorithm: fl.Algorithm, tiny: fl.Run
) -> None:
    assert_equal_to_themselves_alone(group_of(tiny, algorithm))
    inside = fl.SAFARI(inner=algorithm, client_prob=0.6)
    assert_equal_to_themselves_alone(group_of(tiny, inside))


def test_all_these_algorithms_in_one_pack_have_their_own_bits_and_go_on_after_a_stop(
    tiny: fl.Run,
) -> None:
    runs = {
        f"{type(algorithm).__name__} {seed}": run
        for algorithm in ALGORITHMS
        for seed, run in group_of(tiny, algorithm).items()
    }
    expected = alone(runs)
    pack = Pack(runs)
    pack.advance(rounds=2)
    again = Pack(runs)
    pack.go_on_in(again)
    for one in (pack, again):
        one.advance()
        assert differences(one.ended(), expected) == {}


NUMBERS: list[dict[str, Any]] = [
    {},
    {"lr": 0.3},
    {"beta": 0.8},
    {"lr": 0.123456789, "beta": 0.95},
    {"lr": 1.0},
]


def test_numbers_that_are_fields_and_differ_within_a_pack_may_be_used_as_in_python(
    tiny: fl.Run,
) -> None:
    runs = {
        f"{i} {seed}": run.replace({"local.lr": 0.1 / (i + 1)})
        for i, fields in enumerate(NUMBERS)
        for seed, run in group_of(tiny, Powers(**fields)).items()
    }
    assert_equal_to_themselves_alone(runs)


class FailsInOneSeed(fl.Algorithm):
    """Divides by zero in the third round of seed 4."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        factor = 1 / ((key.seed, key.round) != (4, 2))  # the mistake
        return replace(state, w_P=state.w_P - factor * update.delta_P)


class FailsAfterAFork(fl.Algorithm):
    """In some seeds the round is over when others go on, of which some fail."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        w_P = state.w_P - update.delta_P
        if key.round != 2 or key("over").random() < 0.5:
            return replace(state, w_P=w_P)
        update = yield fl.TrainMean(w_P, ids)
        if key("wrong").random() < 0.7:
            raise LookupError("my round fails")  # the mistake
        return replace(state, w_P=w_P - update.delta_P)


class FailsByValue(fl.Algorithm):
    """Refuses updates of a loss, which some seeds have."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, ids)
        if key.round == 2 and update.loss_M[0] > 2.09:
            raise RuntimeError("the loss is too large")  # the mistake
        return replace(state, w_P=state.w_P - update.delta_MP.mean(0))


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        (FailsInOneSeed(), ZeroDivisionError),
        (FailsAfterAFork(), LookupError),
        (FailsByValue(), RuntimeError),
    ],
)
def test_only_the_runs_fail_in_which_the_algorithm_fails_and_their_error_has_its_line(
    algorithm: fl.Algorithm, kind: type[Exception], tiny: fl.Run
) -> None:
    runs = group_of(tiny, algorithm)
    runs |= {f"other {seed}": run for seed, run in group_of(tiny, SCAFFOLD()).items()}
    fails = {}
    for name, run in runs.items():
        try:
            alone({name: run})
        except kind as error:
            fails[name] = error
    assert 0 < len(fails) < len(SEEDS), (
        "the test needs some that fail and some that do not"
    )
    pack = Pack(runs)
    pack.advance()
    assert {name: repr(error) for name, error in pack.failed.items()} == {
        name: repr(error) for name, error in fails.items()
    }
    for name, raised in pack.failed.items():
        last = traceback.extract_tb(raised.__traceback__)[-1]
        assert last.name == "round" and (last.line or "").endswith("# the mistake")
        # What was recorded before the failure stays.
        assert [record.round for record in pack.records[name]] == [0, 1]
    good = {name: run for name, run in runs.items() if name not in fails}
    assert differences(pack.ended(), alone(good)) == {}


class WrongShape(fl.Algorithm):
    """Returns too many parameters in seed 3."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        w_P = state.w_P - update.delta_P
        return replace(state, w_P=w_P if key.seed != 3 else torch.cat([w_P, w_P]))


class AsksForNobody(fl.Algorithm):
    """Asks a client that did not come, by chance."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        asked = ids if key.seed != 3 else [10]
        update = yield fl.TrainMean(state.w_P, asked)
        return replace(state, w_P=state.w_P - update.delta_P)


class NotFinite(fl.Algorithm):
    """Divides by zero in seed 3, so that its parameters are no numbers any more."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.TrainMean(state.w_P, ids)
        zero = torch.tensor(float(key.seed - 3))
        return replace(state, w_P=state.w_P - update.delta_P * (zero / zero))


@pytest.mark.parametrize("algorithm", [WrongShape(), AsksForNobody()])
def test_a_mistake_that_raysafl_finds_is_told_to_the_run_that_made_it_with_its_place(
    algorithm: fl.Algorithm, tiny: fl.Run
) -> None:
    runs = group_of(tiny, algorithm)
    with pytest.raises(ValueError) as expected:
        alone({"3": runs["3"]})
    pack = Pack(runs)
    pack.advance()
    (told,) = pack.failed.values()
    assert list(pack.failed) == ["3"] and str(told) == str(expected.value)
    assert f"{type(algorithm).__name__}.round" in str(told)
    good = {name: run for name, run in runs.items() if name != "3"}
    assert differences(pack.ended(), alone(good)) == {}


def test_a_run_whose_algorithm_divides_by_zero_diverges_alone(tiny: fl.Run) -> None:
    runs = group_of(tiny, NotFinite())
    pack = Pack(runs)
    pack.advance()
    ended = pack.ended()
    assert differences(ended, alone(runs)) == {}
    assert [name for name, result in ended.items() if result.reason] == ["3"]
    assert "NotFinite.round" in ended["3"].reason


class ByAccuracy(Participation):
    """A policy of the user's own, with a state and a draw, that goes by the accuracy."""

    uses_accuracy: ClassVar[bool] = True

    def init(self) -> Any:
        return {"count": 1, "last": []}

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        count = state["count"]
        if accuracy is not None and accuracy > 0.5:
            count = min(num_clients, count + 1)
        away = set(state["last"])
        chosen = key("mine").permutation(num_clients).tolist()
        ids = sorted([i for i in chosen if i not in away][:count])
        if key.seed == 5 and key.round == 2:
            raise OSError("my policy fails")
        return {"count": count, "last": ids}, Cohort(ids)


def test_a_policy_of_the_user_s_picks_for_each_replicate_and_fails_for_one(
    tiny: fl.Run,
) -> None:
    policy = {"participation": ByAccuracy(), "rounds": 6}
    runs = {
        f"{type(algorithm).__name__} {seed}": run
        for algorithm in (fl.FedAvg(), SCAFFOLD())
        for seed, run in group_of(tiny, algorithm, **policy).items()
    }
    pack = Pack(runs)
    pack.advance()
    assert list(pack.failed) == ["FedAvg 5", "SCAFFOLD 5"]
    good = {name: run for name, run in runs.items() if name not in pack.failed}
    expected = alone(good)
    assert differences(pack.ended(), expected) == {}
    sizes = {len(result.rows[-1]["cohorts"][-1]) for result in expected.values()}
    assert len(sizes) > 1, "cohorts of one size show less"


def test_without_torchs_private_functions_all_replicates_have_the_same_numbers(
    tiny: fl.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = group_of(tiny, fl.FedAvg())
    monkeypatch.setattr(lifting, "CAN_LIFT", False)
    pack = Pack(runs)
    pack.advance()
    assert differences(pack.ended(), alone(runs)) == {}
