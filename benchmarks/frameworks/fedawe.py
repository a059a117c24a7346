"""The program of FedAWE's authors (github.com/mingxiang12/FedAWE, e0b8538), from a clone.

Its loops run as they are. What is replaced are its download of the images, by the same
inputs that raysafl has, and its evaluation after each round, by a clock; the test
accuracy is measured once, at the end. The spec names the clone's folder and the method.
"""

import sys

import task
import torch


class Images(torch.utils.data.Dataset):
    """Images in memory, with the fields that the program reads."""

    def __init__(self, x, y):
        self.data, self.targets = torch.from_numpy(x), torch.from_numpy(y)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.data[index], self.targets[index]


class EveryRound:
    """The clock in place of the program's evaluation."""

    last = None

    def __init__(self, prefix):
        self.clock, self.accuracy = task.Clock(), 0.0
        EveryRound.last = self

    def collect_stat_eval(self, seed, rounds, model, train, test, *weights):
        """A round is over; FedAWE gives the clients' weights before the server's."""
        from util.util import evaluate

        task.wait()
        self.clock.tick()
        if task.due(rounds):
            w = evaluate(weights[-1], task.device(), *weights[:-1])
            self.accuracy = model.accuracy(test, w, task.device())[1]


def main():
    spec, (train, test, _) = task.spec(), task.arrays()
    asked = {"method": spec["method"], "lr": spec["lr"], "num_clients": spec["clients"]}
    asked |= {"total_rounds": spec["rounds"], "batch_size": spec["batch"]}
    asked |= {"eval_freq": 1, "seeds": 3, "gpu": int(task.device() == "cuda")}
    sys.argv[1:] = [str(part) for k, v in asked.items() for part in (f"--{k}", v)]
    sys.path.insert(0, spec["folder"])
    if task.device() == "cpu":
        # One of its two loops names the GPU itself.
        to = torch.Tensor.to
        torch.Tensor.to = lambda self, where, *more, **named: to(
            self, "cpu" if where == "cuda" else where, *more, **named
        )
    name, loop = ("varying_main", "varying_dynamics")
    if spec["method"] == "fedawe":
        name, loop = ("varying_awe", "varying_dynamics_awe")
    program = __import__(name)
    program.load_data = lambda *_: (Images(*train), Images(*test))
    program.stats_collector = EveryRound
    getattr(program, loop)()
    task.report(EveryRound.last.clock.seconds, EveryRound.last.accuracy)


if __name__ == "__main__":
    main()
