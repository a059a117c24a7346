"""What numpy's generators draw, for many of them in one call.

A `Key` (`raysafl.core.randomness`) makes numpy's generator Philox for each draw, which
takes longer than a draw of a few numbers. The functions here draw the same numbers as
`Generator.choice`, `Generator.random` and `Generator.permutation` of numpy, without the
object: a round has one draw for each cohort and one for each client, and most are of few
numbers.

Source: Salmon et al. 2011, Philox4x64-10 (docs/papers.md#philox). How its words become
numbers is as in numpy's `_generator.pyx` and `distributions.c`.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from raysafl.kernels.jit import compiled

U64 = np.uint64
# The multipliers of Philox, and what is added to its key in every round.
MULTIPLY = (U64(0xD2E7470EE14C6C93), U64(0xCA5A826395121157))
WEYL = (U64(0x9E3779B97F4A7C15), U64(0xBB67AE8584CAA73B))
LOW = U64(0xFFFFFFFF)
HALF = U64(32)
# The places of a generator's state: the counter's four words, the key's two, the four words
# that were drawn last, and how many of their eight halves are used.
COUNTER = 0
KEY = 4
DRAWN = 6
USED = 10
STATE = 11


def _high_word(typing, a, b):  # type: ignore[no-untyped-def] # pragma: no cover
    """Return the upper 64 of the 128 bits of a product of two words.

    It is one instruction of the processor, for which neither Python nor numba has a word.
    """

    def build(context, builder, signature, words):  # type: ignore[no-untyped-def]
        wide = ir.IntType(128)
        one, other = (builder.zext(word, wide) for word in words)
        upper = builder.lshr(builder.mul(one, other), ir.Constant(wide, 64))
        return builder.trunc(upper, words[0].type)

    return types.uint64(types.uint64, types.uint64), build


# numba's own annotations would have it called with all three arguments.
high_word: Any = intrinsic(_high_word)


@compiled(part=True)
def begin(state, seed, purpose, client, round):  # type: ignore[no-untyped-def] # pragma: no cover
    """Let a state be that of the generator that a `Key` makes.

    Args:
        state: [STATE] uint64, written.
        seed: the key's seed.
        purpose: the checksum of the purpose.
        client: the number of the client; -1 is the server.
        round: the key's round.
    """
    state[:] = U64(0)
    state[COUNTER + 1] = U64(client + 1)
    state[COUNTER + 2] = U64(round)
    state[KEY] = U64(seed)
    state[KEY + 1] = U64(purpose)
    state[USED] = U64(8)


@compiled(part=True)
def next_half(state):  # type: ignore[no-untyped-def] # pragma: no cover
    """Draw 32 bits, as numpy does: first the lower half of a word, then the upper."""
    if state[USED] == U64(8):
        for word in range(4):
            state[COUNTER + word] += U64(1)
            if state[COUNTER + word] != U64(0):
                break
        c0 = state[COUNTER]
        c1 = state[COUNTER + 1]
        c2 = state[COUNTER + 2]
        c3 = state[COUNTER + 3]
        k0 = state[KEY]
        k1 = state[KEY + 1]
        for _ in range(10):
            high0 = high_word(MULTIPLY[0], c0)
            high1 = high_word(MULTIPLY[1], c2)
            low0 = MULTIPLY[0] * c0
            low1 = MULTIPLY[1] * c2
            c0 = high1 ^ c1 ^ k0
            c1 = low1
            c2 = high0 ^ c3 ^ k1
            c3 = low0
            k0 += WEYL[0]
            k1 += WEYL[1]
        state[DRAWN] = c0
        state[DRAWN + 1] = c1
        state[DRAWN + 2] = c2
        state[DRAWN + 3] = c3
        state[USED] = U64(0)
    used = state[USED]
    state[USED] = used + U64(1)
    word = state[DRAWN + (used >> U64(1))]
    return word >> HALF if used & U64(1) else word & LOW


@compiled(part=True)
def up_to(state, most):  # type: ignore[no-untyped-def] # pragma: no cover
    """Draw a whole number from 0 to `most`, below 2^32 - 1, by Lemire's method."""
    if most == 0:
        return 0
    count = U64(most + 1)
    product = next_half(state) * count
    if product & LOW < count:
        threshold = (LOW - U64(most)) % count
        while product & LOW < threshold:
            product = next_half(state) * count
    return np.int64(product >> HALF)


@compiled(part=True)
def up_to_masked(state, most):  # type: ignore[no-untyped-def] # pragma: no cover
    """Draw a whole number from 0 to `most`, below 2^32, by rejecting larger ones."""
    mask = U64(most)
    for shift in (1, 2, 4, 8, 16):
        mask |= mask >> U64(shift)
    value = next_half(state) & mask if most else U64(0)
    while value > U64(most):
        value = next_half(state) & mask
    return np.int64(value)


@compiled()
def choose_clients(seed_R, purpose, round, count_R, chosen_RM):  # type: ignore[no-untyped-def] # pragma: no cover
    """Choose distinct numbers, those of `Generator.choice` without replacement, sorted.

    Args:
        seed_R: the seed of each `Key`.
        purpose: the checksum of the purpose.
        round: the round of the keys.
        count_R: how many numbers there are to choose from, at most 10,000: of more
            numbers, numpy may choose in another way.
        chosen_RM: int64, written: the numbers, in ascending order.
    """
    state = np.empty(STATE, np.uint64)
    is_chosen = np.zeros(count_R.max(), np.bool_)
    m = chosen_RM.shape[1]
    for r in range(len(seed_R)):
        begin(state, seed_R[r], purpose, 0, round)
        # The numbers are sorted at the end, so numpy's shuffle of them is left out.
        for i in range(m):
            # Floyd's algorithm: the last number stands in for one that is chosen already.
            last = count_R[r] - m + i
            drawn = up_to(state, last)
            if is_chosen[drawn]:
                drawn = last
            is_chosen[drawn] = True
            chosen_RM[r, i] = drawn
        for i in range(m):
            is_chosen[chosen_RM[r, i]] = False
        chosen_RM[r].sort()


@compiled()
def draw_uniforms(seed_R, purpose, round, u_RN):  # type: ignore[no-untyped-def] # pragma: no cover
    """Draw numbers that are uniform on [0, 1), as `Generator.random`.

    Args:
        seed_R: the seed of each `Key`.
        purpose: the checksum of the purpose.
        round: the round of the keys.
        u_RN: float64, written: the numbers.
    """
    state = np.empty(STATE, np.uint64)
    for r in range(len(seed_R)):
        begin(state, seed_R[r], purpose, 0, round)
        for i in range(u_RN.shape[1]):
            low = next_half(state)
            word = low | (next_half(state) << HALF)
            u_RN[r, i] = np.float64(word >> U64(11)) * 2.0**-53


@compiled()
def draw_batches(keys, clients, steps, index_NB):  # type: ignore[no-untyped-def] # pragma: no cover
    """Draw the mini-batches of tasks; a pass is ordered as by `Generator.permutation`.

    Args:
        keys: (seed_T, purpose_T, client_T, round_T, shuffled_T): the generator of each
            task, and whether it shuffles the samples.
        clients: (flat_S, start_T, samples_T, batches_T): the samples of clients one after
            another, where those of each task's client begin, how many they are, and how
            many batches they make.
        steps: (first_T, steps_T): the number of the batch with which each task begins, and
            how many it takes. Where they end, a new pass begins.
        index_NB: written: the samples of all steps, those of a task below each other, and
            -1 where a batch is short.
    """
    seed_T, purpose_T, client_T, round_T, shuffled_T = keys
    flat_S, start_T, samples_T, batches_T = clients
    first_T, steps_T = steps
    width = index_NB.shape[1]
    state = np.empty(STATE, np.uint64)
    order = np.empty(samples_T.max(), np.int64)
    row = 0
    for t in range(len(samples_T)):
        samples = samples_T[t]
        begin(state, seed_T[t], purpose_T[t], client_T[t], round_T[t])
        for step in range(first_T[t], first_T[t] + steps_T[t]):
            batch = step % batches_T[t]
            if batch == 0 or step == first_T[t]:
                for i in range(samples):
                    order[i] = flat_S[start_T[t] + i]
                if shuffled_T[t]:
                    for i in range(samples - 1, 0, -1):
                        j = up_to_masked(state, i)
                        order[i], order[j] = order[j], order[i]
            for b in range(width):
                at = batch * width + b
                index_NB[row, b] = order[at] if at < samples else -1
            row += 1


@compiled()
def draw_seeds(keys, steps_T, seed_KT):  # type: ignore[no-untyped-def] # pragma: no cover
    """Draw a seed for each step of tasks, as `Generator.integers(2**62)`.

    Args:
        keys: (seed_T, purpose_T, client_T, round_T): the generator of each task.
        steps_T: how many steps each task takes.
        seed_KT: written: the seeds of its steps.
    """
    seed_T, purpose_T, client_T, round_T = keys
    state = np.empty(STATE, np.uint64)
    for t in range(len(steps_T)):
        begin(state, seed_T[t], purpose_T[t], client_T[t], round_T[t])
        for k in range(steps_T[t]):
            low = next_half(state)
            word = low | (next_half(state) << HALF)
            seed_KT[k, t] = np.int64(word >> U64(2))
