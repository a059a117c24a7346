"""Flower (flwr 1.41.0), its simulation engine with client actors of one core each.

There are two actors, or as many as the task says, each with a share of a GPU. Each actor
keeps the data and one model; a client gets and returns its weights in a message.
"""

import functools
import sys

import task
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

CLIENT, SERVER = ClientApp(), ServerApp()


@functools.cache
def resident(path):
    """What an actor keeps: tensors, who holds what, and a model."""
    torch.set_num_threads(1)
    train, _, clients = task.arrays(path)
    device = task.device(path)
    tensors = [torch.from_numpy(column).to(device) for column in (*train, clients)]
    return (*tensors, task.torch_model(path).to(device))


@CLIENT.train()
def train(message, context):
    path = message.content["config"]["spec"]
    x, y, clients, model = resident(path)
    spec, held = task.spec(path), clients[context.node_config["partition-id"]]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), spec["lr"])
    for batch in held[torch.randperm(len(held), device=held.device)].split(
        spec["batch"]
    ):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(held)}),
    }
    return Message(content=RecordDict(content), reply_to=message)


@SERVER.main()
def serve(grid, context):
    from flwr.app import ConfigRecord

    path = sys.argv[1]
    spec, (_, test, clients) = task.spec(path), task.arrays(path)
    device = task.device(path)
    test = tuple(torch.from_numpy(column).to(device) for column in test)
    model = task.torch_model(path).to(device)
    clock, found = task.Clock(), []

    def evaluate(round_, arrays):
        if round_ and task.due(round_, path):
            model.load_state_dict(arrays.to_torch_state_dict())
            found.append(task.torch_accuracy(model, test))
        clock.tick()  # the first tick is before the first round
        return MetricRecord({})

    strategy = FedAvg(
        fraction_train=spec["m"] / len(clients),
        fraction_evaluate=0.0,
        min_train_nodes=spec["m"],
        min_available_nodes=len(clients),
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=spec["rounds"],
        train_config=ConfigRecord({"spec": path}),
        evaluate_fn=evaluate,
    )
    task.report(clock.seconds[1:], found[-1])


def main():
    from flwr.simulation import run_simulation

    spec = task.spec()
    run_simulation(
        server_app=SERVER,
        client_app=CLIENT,
        num_supernodes=len(task.arrays()[2]),
        backend_config={
            "init_args": {"num_cpus": spec.get("cpus", 2)},
            "client_resources": {
                "num_cpus": 1,
                "num_gpus": spec.get("gpus_of_a_client", 0.0),
            },
        },
    )


if __name__ == "__main__":
    import flower  # by its name, so that the actors import it and keep what it caches

    flower.main()
