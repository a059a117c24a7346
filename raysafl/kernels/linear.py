"""Local training and evaluation of multinomial logistic regression, as compiled loops.

With the weights W [C, D], the biases b [C] and a batch X [B, D], a local step computes

    Z = X W' + b,    P = softmax(Z),    E = (lr / B) (P - onehot(y)),
    W <- W - E' X,   b <- b - sum_B E.

One such step is less work than carrying its operands through memory. So a whole task is
trained in one call: W stays in the core's nearest cache from the task's first step to
its last, and samples are read as they are stored (uint8, say), and scaled on the way.

The two matrix products work on blocks of a few rows at a time, whose sums stay in
registers: each number that is read from the cache is used several times. For that, C is
rounded up to a multiple of CLASS_BLOCK and B to a multiple of SAMPLE_BLOCK. Rows beyond
the true ones hold zeros, so that they change nothing.
"""

import numpy as np

from raysafl.kernels.jit import compiled

# A multiple of the 5 classes of a block in `logits` and the 2 in `subtract`.
CLASS_BLOCK = 10
# A multiple of the 2 samples of a block in `logits` and the 4 in `subtract`.
SAMPLE_BLOCK = 4
# Samples that `score` evaluates at a time.
SCORED = 64
F = np.float32

# LLVM may reorder sums (reassoc), fuse a product with a sum (contract) and ignore the
# sign of zero (nsz), so that the sums over D become vector instructions. How it does so
# is decided when the loop is compiled, so results depend on the shapes, never on the
# values. The other fast-math flags stay off: with `nnan` and `ninf` a diverged run's
# NaN and infinities would give arbitrary numbers instead of being seen.
FAST = frozenset({"reassoc", "contract", "nsz"})

# Every function below but `descend` and `score` is compiled into these two
# (`part=True`), so that there is one compiled copy of each; see
# `raysafl.kernels.jit.compiled`.


@compiled(FAST, part=True)
def unflatten(w_CD, b_C, w_P):  # type: ignore[no-untyped-def] # pragma: no cover
    """Copy flat parameters (weights, biases) to W and b, and zero W's extra rows."""
    classes = len(b_C)
    inputs = w_CD.shape[1]
    for c in range(classes):
        for d in range(inputs):
            w_CD[c, d] = w_P[c * inputs + d]
        b_C[c] = w_P[classes * inputs + c]
    w_CD[classes:] = 0


@compiled(FAST, part=True)
def load_batch(x_BD, x_SD, rows, scale, shift):  # type: ignore[no-untyped-def] # pragma: no cover
    """Copy samples into X, scaled: X = x * scale + shift, and zero X's extra rows."""
    for i in range(len(rows)):
        row = rows[i]
        for d in range(x_BD.shape[1]):
            x_BD[i, d] = F(x_SD[row, d]) * scale + shift
    for i in range(len(rows), len(x_BD)):
        for d in range(x_BD.shape[1]):
            x_BD[i, d] = 0


@compiled(FAST, part=True)
def prefetch(x_SD, rows):  # type: ignore[no-untyped-def] # pragma: no cover
    """Read one number of each cache line of some samples, and return their sum.

    A client's samples lie far apart in memory. Here the processor waits for many of
    them at the same time; in `load_batch` it would wait for one after the other. The
    sum has no meaning, but must be used, or the compiler would remove the reads.
    """
    total = F(0)
    line = 64 // x_SD.itemsize
    for row in rows:
        for d in range(0, x_SD.shape[1], line):
            total += F(x_SD[row, d])
    return total


@compiled(FAST, part=True)
def logits(w_CD, x_BD, z_BC):  # type: ignore[no-untyped-def] # pragma: no cover
    """Compute Z = X W', in blocks of five classes and two samples.

    The block's ten sums stay in registers: s0 to s4 of the first sample, t0 to t4 of
    the second. Each pass over d reads seven numbers for ten products.
    """
    for c in range(0, len(w_CD), 5):
        for i in range(0, len(x_BD), 2):
            s0 = s1 = s2 = s3 = s4 = F(0)
            t0 = t1 = t2 = t3 = t4 = F(0)
            for d in range(x_BD.shape[1]):
                s = x_BD[i, d]
                t = x_BD[i + 1, d]
                w0 = w_CD[c, d]
                w1 = w_CD[c + 1, d]
                w2 = w_CD[c + 2, d]
                w3 = w_CD[c + 3, d]
                w4 = w_CD[c + 4, d]
                s0 += w0 * s
                s1 += w1 * s
                s2 += w2 * s
                s3 += w3 * s
                s4 += w4 * s
                t0 += w0 * t
                t1 += w1 * t
                t2 += w2 * t
                t3 += w3 * t
                t4 += w4 * t
            for j, (s, t) in enumerate(
                ((s0, t0), (s1, t1), (s2, t2), (s3, t3), (s4, t4))
            ):
                z_BC[i, c + j] = s
                z_BC[i + 1, c + j] = t


@compiled(FAST, part=True)
def softmax_errors(z_BC, b_C, y_S, rows, scale):  # type: ignore[no-untyped-def] # pragma: no cover
    """Turn Z = X W' into the errors E = scale * (softmax(Z + b) - onehot(y)).

    The largest logit is subtracted before the exponential, which then cannot overflow.
    Of several largest ones the first class is the prediction, as in torch's argmax.

    Returns:
        The sum of the samples' cross-entropies, and how many are classified correctly.
    """
    loss = 0.0
    correct = 0
    for i in range(len(rows)):
        label = y_S[rows[i]]

        prediction = 0
        largest = F(-np.inf)
        for c in range(len(b_C)):
            z_BC[i, c] += b_C[c]
            if z_BC[i, c] > largest:
                prediction = c
                largest = z_BC[i, c]
        correct += prediction == label

        # cross-entropy = log(sum_c exp(z_c - largest)) + largest - z_label
        loss += largest - z_BC[i, label]
        total = F(0)
        for c in range(len(b_C)):
            z_BC[i, c] = np.exp(z_BC[i, c] - largest)
            total += z_BC[i, c]
        loss += np.log(total)

        for c in range(len(b_C)):
            z_BC[i, c] *= scale / total
        z_BC[i, label] -= scale
    return loss, correct


@compiled(FAST, part=True)
def subtract(w_CD, e_BC, x_BD):  # type: ignore[no-untyped-def] # pragma: no cover
    """Compute W <- W - E' X, in blocks of two classes and four samples.

    The block's eight errors stay in registers: s0 to s3 of the first class, t0 to t3 of
    the second. Each pass over d reads six numbers for eight products. Extra rows of X
    and of E are zero, so that they change nothing.
    """
    for i in range(0, len(x_BD), 4):
        for c in range(0, len(w_CD), 2):
            s0 = e_BC[i, c]
            s1 = e_BC[i + 1, c]
            s2 = e_BC[i + 2, c]
            s3 = e_BC[i + 3, c]
            t0 = e_BC[i, c + 1]
            t1 = e_BC[i + 1, c + 1]
            t2 = e_BC[i + 2, c + 1]
            t3 = e_BC[i + 3, c + 1]
            for d in range(x_BD.shape[1]):
                x0 = x_BD[i, d]
                x1 = x_BD[i + 1, d]
                x2 = x_BD[i + 2, d]
                x3 = x_BD[i + 3, d]
                w_CD[c, d] -= s0 * x0 + s1 * x1 + s2 * x2 + s3 * x3
                w_CD[c + 1, d] -= t0 * x0 + t1 * x1 + t2 * x2 + t3 * x3


@compiled(FAST, part=True)
def add_terms(w_CD, b_C, pull_P, shrink, lr):  # type: ignore[no-untyped-def] # pragma: no cover
    """Take the terms' part of a step: W -= lr * (shrink * W + pull), and b likewise."""
    classes = len(b_C)
    inputs = w_CD.shape[1]
    for c in range(classes):
        for d in range(inputs):
            w_CD[c, d] -= lr * (shrink * w_CD[c, d] + pull_P[c * inputs + d])
        b_C[c] -= lr * (shrink * b_C[c] + pull_P[classes * inputs + c])


@compiled(FAST)
def descend(  # type: ignore[no-untyped-def] # pragma: no cover
    w_TP, classes, lr_T, terms, plan, samples, buffers, tally_T3
):
    """Take all local steps of each task, one task after the other.

    Args:
        w_TP: [T, P] float32; each task's start, which becomes start minus end.
        classes: the true number of classes.
        lr_T: [T] float32 learning rates.
        terms: (has_terms_T, shrink_T, pull_TP): whether a task has terms beside the
            loss's gradient, and these as shrink * w + pull.
        plan: (plan_NB, steps_T): the samples of each step, padded with -1, the steps of
            all tasks below each other; and how many steps each task takes.
        samples: (x_SD, y_S, scale, shift): the training set as it is stored.
        buffers: (w_CD, x_BD, z_BC): memory for the weights, a batch and its logits,
            each rounded up to whole blocks.
        tally_T3: sums over the samples seen, to which is added: their cross-entropies, how
            many are classified correctly, and how many they are.
    """
    has_terms_T, shrink_T, pull_TP = terms
    plan_NB, steps_T = plan
    x_SD, y_S, scale, shift = samples
    w_CD, x_BD, z_BC = buffers
    b_C = np.empty(classes, F)
    inputs = w_CD.shape[1]

    stop = 0
    for t in range(len(w_TP)):
        unflatten(w_CD, b_C, w_TP[t])
        start = stop
        stop = start + steps_T[t]
        for k in range(start, stop):
            size = 0
            while size < plan_NB.shape[1] and plan_NB[k, size] >= 0:
                size += 1
            rows = plan_NB[k, :size]

            # Stored only so that the compiler keeps the reads; `logits` writes over it.
            z_BC[0, 0] = prefetch(x_SD, rows)
            load_batch(x_BD, x_SD, rows, scale, shift)
            logits(w_CD, x_BD, z_BC)
            loss, correct = softmax_errors(z_BC, b_C, y_S, rows, lr_T[t] / F(size))

            # The terms are those at the step's start, so they come before W changes.
            if has_terms_T[t]:
                add_terms(w_CD, b_C, pull_TP[t], shrink_T[t], lr_T[t])
            subtract(w_CD, z_BC, x_BD)
            for i in range(size):
                for c in range(classes):
                    b_C[c] -= z_BC[i, c]

            tally_T3[t, 0] += loss
            tally_T3[t, 1] += correct
            tally_T3[t, 2] += size
        for c in range(classes):
            for d in range(inputs):
                w_TP[t, c * inputs + d] -= w_CD[c, d]
            w_TP[t, classes * inputs + c] -= b_C[c]


@compiled(FAST)
def score(w_RP, classes, samples, buffers, sums_2R):  # type: ignore[no-untyped-def] # pragma: no cover
    """Evaluate models on samples, one model after the other.

    Args:
        w_RP: [R, P] float32 parameters.
        classes: the true number of classes.
        samples: (x_SD, y_S, scale, shift) as they are stored.
        buffers: (w_CD, x_BD, z_BC) as for `descend`, for batches of SCORED samples.
        sums_2R: written: how many samples are classified correctly, and the sum of their
            cross-entropies.
    """
    w_CD, x_BD, z_BC = buffers
    x_SD, y_S, scale, shift = samples
    b_C = np.empty(classes, F)
    all_S = np.arange(len(y_S))
    for r in range(len(w_RP)):
        unflatten(w_CD, b_C, w_RP[r])
        loss = 0.0
        correct = 0
        for start in range(0, len(y_S), SCORED):
            rows = all_S[start : start + SCORED]
            load_batch(x_BD, x_SD, rows, scale, shift)
            logits(w_CD, x_BD, z_BC)
            batch_loss, batch_correct = softmax_errors(z_BC, b_C, y_S, rows, F(1))
            loss += batch_loss
            correct += batch_correct
        sums_2R[0, r] = correct
        sums_2R[1, r] = loss
