"""pfl-research (pfl 0.6.0), one process: its simulated backend with users in memory.

On a GPU the users' tensors and the model are there.
"""

import numpy as np
import task
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn


class Net(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self):
        super().__init__()
        self.net = task.torch_model()

    def forward(self, x):
        return self.net(x)

    def loss(self, x, y, eval=False):
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y, eval=False):
        return {"accuracy": Weighted(int((self(x).argmax(-1) == y).sum()), len(y))}


class EveryRound(TrainingProcessCallback):
    """The clock, and the evaluation on the central test set."""

    def __init__(self, test):
        self.test, self.accuracy, self.clock = test, 0.0, None

    def on_train_begin(self, *, model):
        self.clock = task.Clock()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if task.due(central_iteration + 1):
            self.accuracy = task.torch_accuracy(model.pytorch_model, self.test)
        task.wait()
        self.clock.tick()
        return False, Metrics()


def main():
    np.random.seed(0)
    torch.manual_seed(0)
    spec, (train, test, clients) = task.spec(), task.arrays()
    device = task.device()
    x, y = (torch.from_numpy(column).to(device) for column in train)
    test = tuple(torch.from_numpy(column).to(device) for column in test)
    users = [(x[held], y[held]) for held in torch.from_numpy(clients).to(device)]

    def user(i):
        order = torch.randperm(len(users[i][1]), device=device)
        return Dataset(raw_data=[column[order] for column in users[i]], user_id=str(i))

    data = FederatedDataset(user, get_user_sampler("random", list(range(len(users)))))
    net = Net().to(device)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    every_round = EveryRound(test)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=spec["rounds"],
            evaluation_frequency=spec["rounds"] + 1,  # pfl's own, on users: never
            train_cohort_size=spec["m"],
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=spec["lr"],
            local_batch_size=spec["batch"],
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[every_round],
    )
    task.report(every_round.clock.seconds, every_round.accuracy)


if __name__ == "__main__":
    main()
