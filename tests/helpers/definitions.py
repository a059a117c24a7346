"""The definition of each algorithm in float64 NumPy, on logistic regression.

Each is written from its paper's formulas (docs/papers.md) and shares no code with the
package's algorithms, training or sums. From the package come the data, who came, and
random numbers: mini-batches, SAFARI's draw, AFL's ages, noise and random rounding.

Delta_i = w - w_i is the update of a client that starts at w and ends at w_i.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from helpers.tasks import draw_batches
from raysafl import FSL, SAFARI, Algorithm, FedAvg, LocalTraining
from raysafl.algorithms import (
    AFL,
    EVERYONE,
    F3AST,
    FOCUS,
    MIFA,
    SCAFFOLD,
    SERVER,
    AmplifiedSCAFFOLD,
    CAFed,
    Centralised,
    Compressed,
    Compression,
    DebiasedFedAvg,
    FedAdagrad,
    FedAdam,
    FedAmplify,
    FedAU,
    FedAvgM,
    FedAWE,
    FedDyn,
    FedLaAvg,
    FedProx,
    FedVARP,
    FedYogi,
    FSLParallel,
    Key,
    Oort,
    PowerOfChoice,
    Quantised,
    ScheduledServer,
    Selected,
    Selection,
    ServerOnly,
    TopK,
)

Vector: TypeAlias = NDArray[np.float64]
Updates: TypeAlias = dict[int, Vector]
"""What clients have computed, or what arrives of it, by client."""
Play: TypeAlias = Callable[[Vector, Sequence[int]], Vector]
"""One round: the model after it, from the model before it and the cohort."""
Select: TypeAlias = Callable[[Vector, Sequence[int]], list[int]]
"""The selected clients, from the model and the available clients."""


@dataclass
class Clock:
    """The round, and how many requests to train, or of any kind, it has had so far."""

    round: int = 0
    trained: int = 0
    asked: int = 0


@dataclass(frozen=True)
class Lab:
    """Clients and a server that train a linear model under cross-entropy.

    Args:
        x_SD: The training samples.
        y_S: Their classes.
        held: The samples that each client, SERVER and EVERYONE hold.
        seed: The seed of the replicate.
        local: How clients train.
        clients: The number N of clients.
        send: What arrives at the server of the updates that clients have computed.
        seen: Of each client's last training, the mean loss, the number of samples and the
            round, counted from 1.
        clock: The round, which all parts of an algorithm share.
    """

    x_SD: Vector
    y_S: NDArray[np.int64]
    held: Callable[[int], NDArray[np.int64]]
    seed: int
    local: LocalTraining
    clients: int
    send: Callable[[Updates], Updates] = dict
    seen: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)

    @property
    def key(self) -> Key:
        return Key(self.seed, self.clock.round)

    def gradient(self, w: Vector, rows: NDArray[np.int64]) -> tuple[Vector, Vector]:
        """The gradient of the mean cross-entropy over some samples, and that of each."""
        x, classes = self.x_SD[rows], int(self.y_S.max()) + 1
        weights, biases = np.split(w, [-classes])
        logits = x @ weights.reshape(classes, -1).T + biases
        odds = np.exp(logits - logits.max(1, keepdims=True))
        share = odds / odds.sum(1, keepdims=True)
        error = share - np.eye(classes)[self.y_S[rows]]
        loss = -np.log(share[np.arange(len(rows)), self.y_S[rows]])
        return np.concatenate([(error.T @ x).ravel(), error.sum(0)]) / len(rows), loss

    def update(
        self,
        who: int,
        w: Vector,
        local: LocalTraining,
        offset: Vector | float = 0.0,
        prox: float = 0.0,
    ) -> Vector:
        """Delta of plain SGD along g + offset + prox (w_i - w)."""
        now, losses = w, []
        for rows in self.batches(who, local):
            g, loss = self.gradient(now, rows)
            losses.append(loss)
            rate = local.rate(self.clock.round)
            now = now - rate * (g + offset + prox * (now - w))
        each = np.concatenate(losses)
        self.seen[who] = float(each.mean()), len(each), self.clock.round + 1
        return w - now

    def batches(self, who: int, local: LocalTraining) -> list[NDArray[np.int64]]:
        """The samples of each mini-batch that somebody draws for a request."""
        held, key = self.held(who), self.key(f"batches {self.clock.trained}", who)
        drawn = draw_batches(len(held), local, key)
        return [held[positions[positions >= 0]] for positions in drawn]

    def losses(
        self, ids: Sequence[int], w: Vector, batches: int | None = None
    ) -> dict[int, float]:
        """The mean loss of w on all samples of each client, or on some mini-batches."""
        self._asked()
        rows = {i: self.held(i) for i in ids}
        if batches:
            size = self.local.batch_size
            local = LocalTraining(lr=1.0, batch_size=size, steps=batches)
            rows = {i: np.concatenate(self.batches(i, local)) for i in ids}
        return {i: float(self.gradient(w, rows[i])[1].mean()) for i in ids}

    def train(
        self,
        ids: Sequence[int],
        start: Vector | Mapping[int, Vector],
        offset: Mapping[int, Vector] | None = None,
        prox: float = 0.0,
    ) -> Updates:
        """The updates that clients compute, from one start or each from its own."""
        self._asked()
        starts = start if isinstance(start, Mapping) else dict.fromkeys(ids, start)
        offsets = offset or dict.fromkeys(ids, 0.0)
        return {i: self.update(i, starts[i], self.local, offsets[i], prox) for i in ids}

    def train_one(self, who: int, w: Vector, local: LocalTraining | None) -> Vector:
        """The model after the server, or everyone's data in one place, has trained it."""
        self._asked()
        return w - self.update(who, w, local or self.local)

    def sizes(self, ids: Sequence[int]) -> list[int]:
        """The numbers of samples that clients hold."""
        self.clock.asked += 1
        return [len(self.held(i)) for i in ids]

    def steps(self, client: int) -> int:
        """The number of a client's local steps."""
        return self.local.num_steps(len(self.held(client)))

    def _asked(self) -> None:
        self.clock.trained += 1
        self.clock.asked += 1


def mean(rows: Updates, weights: Sequence[float] | None = None) -> Vector:
    found: Vector = np.average([*rows.values()], axis=0, weights=weights)
    return found


def server_rate(lr: float | None, ids: Sequence[int]) -> float:
    return math.sqrt(len(ids)) if lr is None else lr


def fedavg(a: Any, lab: Lab, w: Vector) -> Play:
    v = np.zeros_like(w)

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal v
        n = lab.sizes(ids) if a.weighted else None
        prox, momentum = getattr(a, "prox", 0), getattr(a, "momentum", 0)
        v = momentum * v + mean(lab.send(lab.train(ids, w, prox=prox)), n)
        return w - server_rate(a.lr, ids) * v

    return play


def adaptive(second: Callable[[Any, Vector, Vector], Vector]) -> Any:
    """FedOpt, algorithm 2, with one of its three second moments."""

    def fedopt(a: Any, lab: Lab, w: Vector) -> Play:
        m, v = np.zeros_like(w), np.full_like(w, a.tau**2)

        def play(w: Vector, ids: Sequence[int]) -> Vector:
            nonlocal m, v
            n = lab.sizes(ids) if a.weighted else None
            change = -mean(lab.send(lab.train(ids, w)), n)
            m = a.beta1 * m + (1 - a.beta1) * change
            v = second(a, v, change**2)
            return w + a.lr * m / (np.sqrt(v) + a.tau)

        return play

    return fedopt


def yogi(a: FedYogi, v: Vector, square: Vector) -> Vector:
    return v - (1 - a.beta2) * square * np.sign(v - square)


def scaffold(a: SCAFFOLD, lab: Lab, w: Vector) -> Play:
    c = np.zeros_like(w)
    own = {i: np.zeros_like(w) for i in range(lab.clients)}

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal c
        delta = lab.train(ids, w, {i: c - own[i] for i in ids})
        eta = lab.local.rate(lab.clock.round)
        plus = {i: own[i] - c + delta[i] / (lab.steps(i) * eta) for i in ids}
        c = c + sum(plus[i] - own[i] for i in ids) / lab.clients
        own.update(plus)
        return w - server_rate(a.lr, ids) * mean(lab.send(delta))

    return play


def feddyn(a: FedDyn, lab: Lab, w: Vector) -> Play:
    h = np.zeros_like(w)
    grad = {i: np.zeros_like(w) for i in range(lab.clients)}

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal h
        delta = lab.train(ids, w, {i: -grad[i] for i in ids}, prox=a.alpha)
        grad.update({i: grad[i] + a.alpha * delta[i] for i in ids})
        ends = {i: w - row for i, row in lab.send(delta).items()}
        h = h - a.alpha * sum(end - w for end in ends.values()) / lab.clients
        return mean(ends) - h / a.alpha

    return play


def fedvarp(a: FedVARP, lab: Lab, w: Vector) -> Play:
    y = {i: np.zeros_like(w) for i in range(lab.clients)}

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        delta = lab.send(lab.train(ids, w))
        v = mean({i: delta[i] - y[i] for i in ids}) + mean(y)
        y.update(delta)
        return w - a.lr * v

    return play


def mifa(a: MIFA, lab: Lab, w: Vector) -> Play:
    g: Updates = {}

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        if ids:
            g.update(lab.send(lab.train(ids, w)))
        over = lab.clients if a.over == "all" else max(1, len(g))
        return w - a.lr * sum(g.values()) / over

    return play


def fedlaavg(a: FedLaAvg, lab: Lab, w: Vector) -> Play:
    g = {i: np.zeros_like(w) for i in range(lab.clients)}
    last = dict.fromkeys(g, -1)

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        eta = lab.local.rate(lab.clock.round)
        if len(ids) > (a.K or lab.clients):
            ids = sorted(sorted(ids, key=lambda i: (last[i], i))[: a.K])
        if ids:
            delta = lab.send(lab.train(ids, w))
            g.update({i: delta[i] / eta for i in ids})
            last.update(dict.fromkeys(ids, lab.clock.round))
        return w - a.lr * eta * mean(g)

    return play


def f3ast(a: F3AST, lab: Lab, w: Vector) -> Play:
    """Rates r_i of all clients, from which those who are selected are drawn nearer to 1."""
    n = np.array([len(lab.held(i)) for i in range(lab.clients)])
    p = n / len(lab.held(EVERYONE))
    r = p.copy() if a.divided_by_m else a.m * p

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal r
        # All clients are equal at first, but for the last digits.
        ids = sorted(sorted(ids, key=lambda i: -round(p[i] / r[i], 9))[: a.m])
        r = (1 - a.beta) * r + a.beta * np.isin(np.arange(len(r)), ids)
        if not ids:
            return w
        lab.clock.asked += 2
        delta = lab.send(lab.train(ids, w))
        step = sum(p[i] / r[i] * delta[i] for i in ids)
        return w - a.lr * step / (a.m if a.divided_by_m else 1)

    return play


def markov(a: CAFed, now: Vector) -> tuple[Vector, Vector]:
    """Estimates of pi and lambda from a history, a row of 0 and 1 for each round."""
    before = now[:-1]
    if a.over_all_rounds:
        before = np.vstack([np.zeros(now.shape[1]), before])
    after = now[len(now) - len(before) :]
    on_on, off_off = before * after, (1 - before) * (1 - after)
    r = a.prior_rounds
    pi = (now.sum(0) + 0.5 * r) / (len(now) + r)
    on, off, half = before.sum(0), (1 - before).sum(0), 0.5 * r
    if a.over_all_rounds:
        on = off = np.full(now.shape[1], len(now))
        half = r
    stays_on = (on_on.sum(0) + 0.5 * half) / (on + half)
    stays_off = (off_off.sum(0) + 0.5 * half) / (off + half)
    return pi, stays_on + stays_off - 1


def cafed(a: CAFed, lab: Lab, w: Vector) -> Play:
    n = np.array([len(lab.held(i)) for i in range(lab.clients)])
    share = n / n.sum()
    history: list[Vector] = []
    loss: dict[int, float] = {}

    def error(q: Vector, pi: Vector) -> float:
        v, f = pi * q / (pi @ q), np.array([loss[i] for i in range(len(n))])
        far = np.abs(share - v).sum() / 2
        return float(v @ f + a.bias * f.max() * far**2)

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        history.append(np.isin(np.arange(len(n)), ids).astype(float))
        if not ids:
            return w
        new = lab.losses(ids, w)
        if not loss:
            loss.update(dict.fromkeys(range(len(n)), float(np.mean([*new.values()]))))
        loss.update(new)
        pi, correlation = markov(a, np.array(history))
        q = share / pi
        for key in (-np.abs(correlation), pi):
            for i in np.argsort(key.round(9), kind="stable"):
                without = np.where(np.arange(len(n)) == i, 0, q)
                if without.any() and error(q, pi) - error(without, pi) >= a.tolerance:
                    q = without
        chosen = [i for i in ids if q[i]]
        if not chosen:
            return w
        lab.clock.asked += 1
        delta = lab.send(lab.train(chosen, w))
        return w - a.lr * sum(q[i] * delta[i] for i in chosen)

    return play


def fedau(a: FedAU, lab: Lab, w: Vector) -> Play:
    ended: dict[int, list[int]] = {i: [] for i in range(lab.clients)}
    length = dict.fromkeys(ended, 0)

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        for i, delta in lab.send(lab.train(ids, w)).items() if ids else ():
            weight = np.mean(ended[i]) if ended[i] else 1.0
            w = w - a.lr / lab.clients * weight * delta
        for i in ended:
            length[i] += 1
            if i in ids or length[i] == a.K:
                ended[i].append(length[i])
                length[i] = 0
        return w

    return play


def fedamplify(a: FedAmplify, lab: Lab, w: Vector) -> Play:
    start, count = w, 0

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal start, count
        w = w - mean(lab.send(lab.train(ids, w)))
        count += 1
        if count % a.P == 0:
            w = start = start + a.eta * (w - start)
        return w

    return play


def amplified_scaffold(a: AmplifiedSCAFFOLD, lab: Lab, w: Vector) -> Play:
    """Sums of raw gradients, which are found again from the steps' offsets."""
    own = {i: np.zeros_like(w) for i in range(lab.clients)}
    sums: Updates = {}
    steps: dict[int, int] = {}
    start, count = w, 0

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal start, count
        c = mean(own)
        delta = lab.train(ids, w, {i: c - own[i] for i in ids})
        eta = lab.local.rate(lab.clock.round)
        for i in ids:
            k = lab.steps(i)
            sums[i] = sums.get(i, 0.0) + delta[i] / eta - k * (c - own[i])
            steps[i] = steps.get(i, 0) + k
        w = w - mean(lab.send(delta))
        count += 1
        if count % a.P == 0:
            w = start = w + (a.gamma - 1) * (w - start)
            own.update({i: sums[i] / steps[i] for i in sums})
            sums.clear()
            steps.clear()
        return w

    return play


def debiased(a: DebiasedFedAvg, lab: Lab, w: Vector) -> Play:
    count = np.zeros(lab.clients)
    rounds = 0

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal rounds
        rounds += 1
        count[list(ids)] += 1
        for i, delta in lab.send(lab.train(ids, w)).items() if ids else ():
            w = w - a.lr / lab.clients * delta / (count[i] / rounds)
        return w

    return play


def fedawe(a: FedAWE, lab: Lab, w: Vector) -> Play:
    model = {i: w for i in range(lab.clients)}
    last = dict.fromkeys(model, -1)
    now = -1

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal now
        now += 1
        if not ids:
            return w
        before = mean(model)
        delta = lab.send(lab.train(ids, {i: model[i] for i in ids}))
        step = mean({i: (now - last[i]) * delta[i] for i in ids})
        if a.clip_norm is not None:
            step = step * min(1.0, a.clip_norm / np.linalg.norm(step))
        model.update(dict.fromkeys(ids, mean({i: model[i] for i in ids}) - a.lr * step))
        last.update(dict.fromkeys(ids, now))
        return w + mean(model) - before

    return play


def focus(a: FOCUS, lab: Lab, w: Vector) -> Play:
    """Every gradient of the last step is added, and that of the step before taken away."""
    g = {i: np.zeros_like(w) for i in range(lab.clients)}
    y = np.zeros_like(w)

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal y
        delta = lab.train(ids, w, {i: -g[i] for i in ids})
        once = replace(lab, local=LocalTraining(lr=1.0, batch_size=16, steps=1))
        new = once.train(ids, {i: w - delta[i] for i in ids})
        y = y + sum(new[i] - g[i] for i in ids)
        g.update(new)
        return w - (a.lr or lab.local.rate(lab.clock.round)) * y

    return play


def afl(a: AFL, lab: Lab, w: Vector) -> Play:
    models: list[Vector] = []
    last: Updates = {}

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        models.append(w)
        oldest = min(len(models) - 1, a.max_delay)
        ages = {i: lab.key("delay", i).integers(oldest + 1) for i in ids}
        delta = lab.send(lab.train(ids, {i: models[-1 - ages[i]] for i in ids}))
        step = {i: delta[i] / lab.steps(i) for i in ids}
        last.update(step)
        if a.memory:
            return w - a.lr * sum(last.values()) / lab.clients
        return w - a.lr * mean(step)

    return play


def server_only(a: ServerOnly, lab: Lab, w: Vector) -> Play:
    return lambda w, ids: lab.train_one(SERVER, w, a.server_update)


def centralised(a: Centralised, lab: Lab, w: Vector) -> Play:
    return lambda w, ids: lab.train_one(EVERYONE, w, a.local)


def scheduled(a: ScheduledServer, lab: Lab, w: Vector) -> Play:
    """FedAvgM, whose server rate falls at the milestones."""
    v = np.zeros_like(w)

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal v
        v = a.inner.momentum * v + mean(lab.send(lab.train(ids, w)))
        passed = sum(start <= lab.clock.round for start in a.schedule.milestones)
        return w - a.inner.lr * a.schedule.decay**passed * v

    return play


def safari(a: SAFARI, lab: Lab, w: Vector) -> Play:
    inner = definition(a.inner, lab, w)

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        if lab.key("safari").random() < a.client_prob:
            return inner(w, ids)
        return lab.train_one(SERVER, w, a.server_update)

    return play


def fsl(a: FSL, lab: Lab, w: Vector) -> Play:
    """FSL, algorithm 1, with the defaults of section IV-A; E_c is in `local.epochs`."""
    n_0, samples = len(lab.held(SERVER)), len(lab.held(EVERYONE)) / lab.clients
    batch, eta, e_c = lab.local.batch_size, lab.local.lr, lab.local.epochs
    assert e_c is not None
    e_s = math.ceil(samples * e_c / n_0)
    k, k_0 = math.ceil(samples / batch) * e_c, math.ceil(n_0 / batch) * e_s
    inner = None if a.pretrain else definition(a.inner, lab, w)

    def at_the_server(w: Vector, lr: float, epochs: int) -> Vector:
        local = LocalTraining(lr=lr, batch_size=batch, epochs=epochs)
        return lab.train_one(SERVER, w, local)

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal inner
        if inner is None:
            w = at_the_server(w, a.pretrain_lr, a.pretrain)
            inner = definition(a.inner, lab, w)
        after = inner(w, ids)
        # Both learning rates fall together.
        falls = lab.local.rate(lab.clock.round) / eta
        eta_0 = math.sqrt(max(1, len(ids))) * eta * k / k_0 * falls
        start = w if isinstance(a, FSLParallel) else after
        return after + at_the_server(start, a.gamma * eta_0, e_s) - start

    return play


def compressed(a: Compressed, lab: Lab, w: Vector) -> Play:
    """Error feedback; random roundings are drawn by the number of the inner request."""
    residual: Updates = {}
    asked = 0

    def send(updates: Updates) -> Updates:
        sent = {}
        for i, delta in updates.items():
            p = delta + residual.get(i, 0.0)
            rng = lab.key(f"compress {lab.clock.asked - asked}", i)
            sent[i] = COMPRESSIONS[type(a.compression)](a.compression, p, rng)
            if a.error_feedback:
                residual[i] = p - sent[i]
        return sent

    inner = definition(a.inner, replace(lab, send=send), w)

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        nonlocal asked
        asked = lab.clock.asked
        return inner(w, ids)

    return play


def selected(a: Selected, lab: Lab, w: Vector) -> Play:
    inner = definition(a.inner, lab, w)
    select = SELECTIONS[type(a.by)](a.by, lab)

    def play(w: Vector, ids: Sequence[int]) -> Vector:
        return inner(w, select(w, ids) if len(ids) > a.by.m else ids)

    return play


def power_of_choice(by: PowerOfChoice, lab: Lab) -> Select:
    def select(w: Vector, ids: Sequence[int]) -> list[int]:
        n = np.array(lab.sizes(ids))
        size = min(by.d, len(ids))
        drawn = lab.key("candidates").choice(ids, size, replace=False, p=n / n.sum())
        loss = {i: lab.seen.get(i, [math.inf])[0] for i in ids}
        if by.loss != "last":
            loss = lab.losses(drawn.tolist(), w, 1 if by.loss == "batch" else None)
        # All losses are equal at w = 0, but for the last digits.
        return sorted(sorted(drawn.tolist(), key=lambda i: -round(loss[i], 6))[: by.m])

    return select


def oort(by: Oort, lab: Lab) -> Select:
    def select(w: Vector, ids: Sequence[int]) -> list[int]:
        n = dict(zip(ids, lab.sizes(ids), strict=True))
        new = [i for i in ids if i not in lab.seen]
        old = [i for i in ids if i in lab.seen]
        t = lab.clock.round + 1
        epsilon = max(by.minimum, by.exploration * by.decay**t)
        exploit = min(math.floor((1 - epsilon) * by.m), len(old))
        exploit += max(0, by.m - exploit - len(new))
        drawn = lab.key("explore").choice(new, by.m - exploit, replace=False)
        if not exploit:
            return sorted(drawn.tolist())
        utility = np.array([min(n[i], lab.seen[i][1]) * lab.seen[i][0] for i in old])
        top = np.sort(utility)[min(int(by.clip * len(old)), len(old) - 1)]
        utility = np.minimum(utility, top) - utility.min()
        waited = np.array([math.log(t) / lab.seen[i][2] for i in old])
        score = utility / max(utility.max(), 1e-4) + np.sqrt(0.1 * waited)
        good = score >= by.cut_off * np.sort(score)[-exploit] - 1e-9
        p = score[good] / score[good].sum()
        best = lab.key("exploit").choice(np.array(old)[good], exploit, False, p)
        return sorted([*drawn.tolist(), *best.tolist()])

    return select


def top_k(c: TopK, p: Vector, rng: np.random.Generator) -> Vector:
    k = math.ceil(c.fraction * len(p))
    return np.where(np.abs(p) >= np.sort(np.abs(p))[-k], p, 0.0)


def quantised(c: Quantised, p: Vector, rng: np.random.Generator) -> Vector:
    width = np.abs(p).max() / (2 ** (c.bits - 1) - 1)
    chance = rng.random(len(p)) if c.stochastic else 0.5
    return np.floor(p / width + chance) * width


SELECTIONS: dict[type[Selection], Any] = {Oort: oort, PowerOfChoice: power_of_choice}
COMPRESSIONS: dict[type[Compression], Any] = {TopK: top_k, Quantised: quantised}
DEFINITIONS: dict[type[Algorithm], Any] = {
    AFL: afl,
    AmplifiedSCAFFOLD: amplified_scaffold,
    CAFed: cafed,
    Centralised: centralised,
    Compressed: compressed,
    DebiasedFedAvg: debiased,
    F3AST: f3ast,
    FOCUS: focus,
    FSL: fsl,
    FSLParallel: fsl,
    FedAU: fedau,
    FedAWE: fedawe,
    FedAdagrad: adaptive(lambda a, v, square: v + square),
    FedAdam: adaptive(lambda a, v, square: a.beta2 * v + (1 - a.beta2) * square),
    FedAmplify: fedamplify,
    FedAvg: fedavg,
    FedAvgM: fedavg,
    FedDyn: feddyn,
    FedLaAvg: fedlaavg,
    FedProx: fedavg,
    FedVARP: fedvarp,
    FedYogi: adaptive(yogi),
    MIFA: mifa,
    SAFARI: safari,
    SCAFFOLD: scaffold,
    ScheduledServer: scheduled,
    Selected: selected,
    ServerOnly: server_only,
}
# What these do in a round in which nobody comes is a part of their definitions.
WRAPPERS = (Compressed, FSL, SAFARI, Selected)
ALWAYS = (
    *WRAPPERS,
    *(
        CAFed,
        F3AST,
        Centralised,
        DebiasedFedAvg,
        FedAU,
        FedAWE,
        FedLaAvg,
        MIFA,
        ServerOnly,
    ),
)


def definition(algorithm: Algorithm, lab: Lab, w: Vector) -> Play:
    """Return an algorithm's rounds, from the initial model w on."""
    play: Play = DEFINITIONS[type(algorithm)](algorithm, lab, w)
    if isinstance(algorithm, ALWAYS):
        return play
    return lambda w, ids: play(w, ids) if ids else w


def trajectory(
    algorithm: Algorithm, lab: Lab, w: Vector, cohorts: Sequence[Sequence[int]]
) -> Iterator[Vector]:
    """Yield the model after each round."""
    play = definition(algorithm, lab, w)
    for lab.clock.round, ids in enumerate(cohorts):
        lab.clock.trained = lab.clock.asked = 0
        w = play(w, ids)
        yield w
