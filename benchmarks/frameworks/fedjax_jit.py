"""FedJAX (fedjax 0.0.17), one process: federated averaging with a jitted step per client."""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import task

# fedjax 0.0.17 calls it; jax has removed it since
jax.tree_map = jax.tree_util.tree_map


def logits(params, x):
    """Logistic regression, or the workload's convolutions in NHWC."""
    if "kernels" not in params:
        return x.reshape(len(x), -1) @ params["w"] + params["b"]
    for kernel, bias in zip(params["kernels"], params["biases"], strict=True):
        x = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + bias)
        x = jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
    hidden = jax.nn.relu(x.reshape(len(x), -1) @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def start(spec):
    """Zeros for logistic regression; uniform in +-1/sqrt(fan in) else, as torch has it."""
    if not spec["channels"]:
        return {"w": jnp.zeros((spec["inputs"], 10)), "b": jnp.zeros(10)}
    rng = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(
            rng.uniform(-1, 1, shape) / np.sqrt(np.prod(shape[:-1])), jnp.float32
        )

    (first, second), hidden = spec["channels"], spec["hidden"]
    return {
        "kernels": [draw(3, 3, 3, first), draw(3, 3, first, second)],
        "biases": [jnp.zeros(first), jnp.zeros(second)],
        **{"w1": draw(second * 64, hidden), "b1": jnp.zeros(hidden)},
        **{"w2": draw(hidden, 10), "b2": jnp.zeros(10)},
    }


def loss(params, batch, rng):
    """Mean cross-entropy."""
    log = jax.nn.log_softmax(logits(params, batch["x"]))
    return -jnp.take_along_axis(log, batch["y"][:, None], 1).mean()


@jax.jit
def right(params, x, y):
    """How many of a batch are right."""
    return (logits(params, x).argmax(-1) == y).sum()


def main():
    spec, (train, test, clients) = task.spec(), task.arrays()
    images = [
        x.transpose(0, 2, 3, 1) if spec["channels"] else x for x in (train[0], test[0])
    ]
    data = fedjax.InMemoryFederatedData(
        {
            str(i): {"x": images[0][held], "y": train[1][held]}
            for i, held in enumerate(clients)
        }
    )
    fedjax.set_for_each_client_backend("jit")
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(spec["lr"]),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=spec["batch"], num_epochs=1),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, spec["m"], seed=0)
    state, clock, accuracy = algorithm.init(start(spec)), task.Clock(), 0.0
    for round_ in range(1, spec["rounds"] + 1):
        state, _ = algorithm.apply(state, sampler.sample())
        if task.due(round_):
            spans = [slice(at, at + 1000) for at in range(0, len(test[1]), 1000)]
            hits = [
                right(state.params, images[1][span], test[1][span]) for span in spans
            ]
            accuracy = sum(map(int, hits)) / len(test[1])
        jax.block_until_ready(state.params)
        clock.tick()
    task.report(clock.seconds, accuracy)


if __name__ == "__main__":
    main()
