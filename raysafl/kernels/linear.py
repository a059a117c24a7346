"""linear."""

import numpy as np

from raysafl.kernels.jit import compiled

CLASSES, SAMPLES = 10, 4  # C and B are multiples of these, for the blocks below
SCORED = 64  # samples evaluated at once
F = np.float32


# sums may be reordered, so that they become vectors: by the shape alone, not by the values
FAST = frozenset({"reassoc", "contract", "nsz"})


@compiled(FAST, part=True)
def _unpack(w_CD, b_C, w_P):  # type: ignore[no-untyped-def] # pragma: no cover
    """Weights, with rows of zeros up to a whole block, and biases from one row of parameters."""
    classes, inputs = len(b_C), w_CD.shape[1]
    for c in range(classes):
        for d in range(inputs):
            w_CD[c, d] = w_P[c * inputs + d]
        b_C[c] = w_P[classes * inputs + c]
    w_CD[classes:] = 0


@compiled(FAST, part=True)
def _gather(x_BD, x_ND, rows, scale, shift):  # type: ignore[no-untyped-def] # pragma: no cover
    """X = scale * stored + shift."""
    for i in range(len(rows)):
        row = rows[i]
        for d in range(x_BD.shape[1]):
            x_BD[i, d] = F(x_ND[row, d]) * scale + shift
    for i in range(len(rows), len(x_BD)):
        for d in range(x_BD.shape[1]):
            x_BD[i, d] = 0


@compiled(FAST, part=True)
def _touch(x_ND, rows):  # type: ignore[no-untyped-def] # pragma: no cover
    """One number of each cache line of these samples, summed: so they are fetched side by side,
    where `_gather` would wait for one after the other.
    """
    total, line = F(0), 64 // x_ND.itemsize
    for row in rows:
        for d in range(0, x_ND.shape[1], line):
            total += F(x_ND[row, d])
    return total


@compiled(FAST, part=True)
def _logits(w_CD, x_BD, z_BC):  # type: ignore[no-untyped-def] # pragma: no cover
    """Z = X W', five classes and two samples at a time."""
    for c in range(0, len(w_CD), 5):
        for i in range(0, len(x_BD), 2):
            s0 = s1 = s2 = s3 = s4 = t0 = t1 = t2 = t3 = t4 = F(0)
            for d in range(x_BD.shape[1]):
                s, t = x_BD[i, d], x_BD[i + 1, d]
                w0, w1, w2 = w_CD[c, d], w_CD[c + 1, d], w_CD[c + 2, d]
                w3, w4 = w_CD[c + 3, d], w_CD[c + 4, d]
                s0, s1, s2, s3, s4 = s0 + w0 * s, s1 + w1 * s, s2 + w2 * s, s3 + w3 * s, s4 + w4 * s
                t0, t1, t2, t3, t4 = t0 + w0 * t, t1 + w1 * t, t2 + w2 * t, t3 + w3 * t, t4 + w4 * t
            for j, (s, t) in enumerate(((s0, t0), (s1, t1), (s2, t2), (s3, t3), (s4, t4))):
                z_BC[i, c + j], z_BC[i + 1, c + j] = s, t


@compiled(FAST, part=True)
def _errors(z_BC, b_C, y_N, rows, scale):  # type: ignore[no-untyped-def] # pragma: no cover
    """Z becomes scale * (softmax(Z + b) - onehot(y)); the losses' sum, and how many are right."""
    loss, correct = 0.0, 0
    for i in range(len(rows)):
        top, most, total, own = 0, F(-np.inf), F(0), y_N[rows[i]]
        for c in range(len(b_C)):
            z_BC[i, c] += b_C[c]
            if z_BC[i, c] > most:
                top, most = c, z_BC[i, c]
        correct += top == own
        loss += most - z_BC[i, own]
        for c in range(len(b_C)):
            z_BC[i, c] = np.exp(z_BC[i, c] - most)
            total += z_BC[i, c]
        loss += np.log(total)
        for c in range(len(b_C)):
            z_BC[i, c] *= scale / total
        z_BC[i, own] -= scale
    return loss, correct


@compiled(FAST, part=True)
def _subtract(w_CD, e_BC, x_BD):  # type: ignore[no-untyped-def] # pragma: no cover
    """W -= E' X, two classes and four samples at a time."""
    for i in range(0, len(x_BD), 4):
        for c in range(0, len(w_CD), 2):
            s0, s1, s2, s3 = e_BC[i, c], e_BC[i + 1, c], e_BC[i + 2, c], e_BC[i + 3, c]
            t0, t1, t2, t3 = (
                e_BC[i, c + 1],
                e_BC[i + 1, c + 1],
                e_BC[i + 2, c + 1],
                e_BC[i + 3, c + 1],
            )
            for d in range(x_BD.shape[1]):
                x0, x1, x2, x3 = x_BD[i, d], x_BD[i + 1, d], x_BD[i + 2, d], x_BD[i + 3, d]
                w_CD[c, d] -= s0 * x0 + s1 * x1 + s2 * x2 + s3 * x3
                w_CD[c + 1, d] -= t0 * x0 + t1 * x1 + t2 * x2 + t3 * x3


@compiled(FAST, part=True)
def _pull(w_CD, b_C, pull_CD, pull_C, shrink, lr):  # type: ignore[no-untyped-def] # pragma: no cover
    """W -= lr (shrink W + pull), and b likewise."""
    for c in range(len(b_C)):
        for d in range(w_CD.shape[1]):
            w_CD[c, d] -= lr * (shrink * w_CD[c, d] + pull_CD[c, d])
        b_C[c] -= lr * (shrink * b_C[c] + pull_C[c])


@compiled(FAST)
def _descend(  # type: ignore[no-untyped-def] # pragma: no cover
    w_TP, classes, lr_T, terms, plan, samples, room, tally
):
    """All local steps of every task; its row of parameters becomes start minus end."""
    (w_CD, x_BD, z_BC), (plan_NB, steps_T) = room, plan
    pulled_T, shrink_T, pull_TCD, pull_TC = terms
    (x_ND, y_N, scale, shift), (loss_T, correct_T, samples_T) = samples, tally
    b_C, inputs, stop = np.empty(classes, F), w_CD.shape[1], 0
    for t in range(len(w_TP)):
        _unpack(w_CD, b_C, w_TP[t])
        start, stop = stop, stop + steps_T[t]
        for k in range(start, stop):
            size = 0
            while size < plan_NB.shape[1] and plan_NB[k, size] >= 0:
                size += 1
            rows = plan_NB[k, :size]
            z_BC[0, 0] = _touch(x_ND, rows)  # kept, or it would be optimised away
            _gather(x_BD, x_ND, rows, scale, shift)
            _logits(w_CD, x_BD, z_BC)
            loss, correct = _errors(z_BC, b_C, y_N, rows, lr_T[t] / F(size))
            if pulled_T[t]:
                _pull(w_CD, b_C, pull_TCD[t], pull_TC[t], shrink_T[t], lr_T[t])
            _subtract(w_CD, z_BC, x_BD)
            for i in range(size):
                for c in range(classes):
                    b_C[c] -= z_BC[i, c]
            loss_T[t] += loss
            correct_T[t] += correct
            samples_T[t] += size
        for c in range(classes):
            for d in range(inputs):
                w_TP[t, c * inputs + d] -= w_CD[c, d]
            w_TP[t, classes * inputs + c] -= b_C[c]


@compiled(FAST)
def _score(w_P, classes, samples, room):  # type: ignore[no-untyped-def] # pragma: no cover
    """How many samples are right, and the losses' sum."""
    (w_CD, x_BD, z_BC), (x_ND, y_N, scale, shift) = room, samples
    b_C = np.empty(classes, F)
    _unpack(w_CD, b_C, w_P)
    loss, correct, all_N = 0.0, 0, np.arange(len(y_N))
    for start in range(0, len(y_N), SCORED):
        rows = all_N[start : start + SCORED]
        _gather(x_BD, x_ND, rows, scale, shift)
        _logits(w_CD, x_BD, z_BC)
        more, right = _errors(z_BC, b_C, y_N, rows, F(1))
        loss, correct = loss + more, correct + right
    return correct, loss
