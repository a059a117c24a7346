"""The setting that FSL's figures share (Mai, La and Zhang, docs/papers.md#fsl).

Figures that show the same entry build the same run here, with the same run id.
"""

import raysafl as fl
from experiments.fsl.glyphs import Glyphs
from experiments.fsl.networks import FslCifarNet, FslEmnistNet
from experiments.tools.datasets import cifar10
from raysafl.sweep.definition import smoke as two_rounds

NOTES = """
What the paper prints (section IV and appendix B): CIFAR-10 has 50,000 samples of 10
classes, and EMNIST 108,000 samples of 45 classes. Each client holds C classes, and all
clients hold equally many samples. The networks are those of tables II and III. E_c = 1,
E_s = ceil(n E_c / (N n0)), B_0 = B, eta_g = sqrt(S), eta_0 = sqrt(S) eta_l K / K_0.
There are 1,000 rounds and three runs. The accuracy is a rolling mean over 20 rounds
(`rolling20`), and the rise time is the number of rounds until 90 % of the final
accuracy. Scenario 1: N = 10 clients (CIFAR-10) or 45 (EMNIST), n0 = 500 or 225 samples
at the server; FSL and DS (data sharing) are pre-trained for 500 epochs at rate 0.01.
Scenario 2: N = 1,000 or 450 clients, of which S = N / 100 train in a round; B = 10 or
50; no pre-training; gamma = 1. The server's data come from c clients (FSL) or from
another dataset (FSLsyn).

What the paper leaves open, and our choice: the server's dataset D0 holds equally many
samples of each class, and no client holds them. (The paper samples D0 "from D" and
gives the clients all of D; the difference is 1 % of the samples or less.) B = 50 in
scenario 1. DS is FedAvg with eta_g = sqrt(S) whose clients also hold all of D0. Where a
figure shows a grid that the text does not name, the experiment's file says which grid
we took. Glyphs are drawn in matplotlib's italic serif. The figures print no numbers, so
what the text says of them stands here as claims. EMNIST is tested on all 18,000 test
images of its 45 classes (printed: 10,000).

Scale `small`: two seeds, a small CNN, 30 rounds, 20 epochs of pre-training, B = 20.
CIFAR-10: 6,000 images, a test on 1,000, a tenth of n0, and N = 100 in scenario 2.
EMNIST: the 340 images per class of the folder `emnist47` (another split), a test on
900, and N = 45. CIFAR-10 images that no client holds stand in for STL-10, so FSLsyn
does not test another distribution there. It can only show directions. Scale `medium` is
`small` for 300 rounds.
"""
# in each table
SHOWN = {"statistic": "rolling20", "also": ["rise_time20", "final", "best"]}
CLASSES = {"CIFAR-10": (1, 2, 5, 10), "EMNIST": (1, 2, 5, 45)}  # C; the last one is IID
GAMMAS = {  # the first one is N n0 / n
    "CIFAR-10": (0.1, 0.5, 1.0, 1.5, 2.0),
    "EMNIST": (0.09375, 0.5, 1.0, 1.5, 2.0),
}


def _base_run(dataset, model, clients, server, m, batch_size):
    """Return a run of FedAvg with m clients a round and eta_g = sqrt(m)."""
    return fl.Run(
        data=fl.Federation(
            dataset=dataset,
            clients=clients,
            partition=fl.ClassesPerClient(p=1),
            server=server,
        ),
        model=model,
        algorithm=fl.FedAvg(lr=None),
        participation=fl.Uniform(m=m),
        local=fl.LocalTraining(lr=0.01, batch_size=batch_size, epochs=1),
        rounds=1000,
        replicates=3,
    )


BASE_RUNS = {  # (dataset, scenario)
    ("CIFAR-10", 1): _base_run(
        cifar10(),
        FslCifarNet(),
        clients=10,
        server=fl.data.StratifiedServer(n0=500),
        m=4,
        batch_size=50,
    ),
    ("EMNIST", 1): _base_run(
        fl.data.Emnist(),
        FslEmnistNet(),
        clients=45,
        server=fl.data.StratifiedServer(n0=225),
        m=5,
        batch_size=50,
    ),
    ("CIFAR-10", 2): _base_run(
        cifar10(),
        FslCifarNet(),
        clients=1000,
        server=fl.data.FromClients(c=10, per_client=50),
        m=10,
        batch_size=10,
    ),
    ("EMNIST", 2): _base_run(
        fl.data.Emnist(),
        FslEmnistNet(),
        clients=450,
        server=fl.data.FromClients(c=9, per_client=50),
        m=5,
        batch_size=50,
    ),
}


def stl10_server(n0):
    """Return FSLsyn's server data for CIFAR-10: n0 images of STL-10, nine classes."""
    return fl.data.OtherDatasetServer(
        dataset=fl.data.Stl10(), n0=n0, classes=fl.data.STL10_AS_CIFAR10
    )


def scenario1(dataset, method, C, S=None, lr=0.01, gamma=1.0, n0=None, pretrain=500):
    """Return a run with few clients, where the server's data are IID.

    Args:
        dataset: "CIFAR-10" or "EMNIST".
        method: "FL" (FedAvg), "DS" (data sharing), "FSL", or "FSL-p", in which
            the server trains beside the clients and not after them.
        C: The number of classes per client.
        S: The number of clients that train in a round; None keeps the scenario's.
        lr: The clients' rate eta_l.
        gamma: FSL's weight of the server's learning.
        n0: The number of samples at the server; None keeps the scenario's.
        pretrain: The number of epochs of pre-training at the server (not for FL).
    """
    changes = {"data.partition.p": C, "local.lr": lr}
    if S:
        changes["participation.m"] = S
    if n0:
        changes["data.server.n0"] = n0
    run = BASE_RUNS[dataset, 1].replace(changes)

    if method == "FL":
        return run
    if method == "DS":
        run = run.replace({"data.share": 1.0})
        if not pretrain:
            return run
        return run.replace(algorithm=fl.FSL(gamma=0, pretrain=pretrain))
    kind = fl.algorithms.FSLParallel if method == "FSL-p" else fl.FSL
    return run.replace(algorithm=kind(gamma=gamma, pretrain=pretrain))


def scenario2(dataset, method, C, lr, gamma=1.0, alpha=0.01, server=None):
    """Return a run with many clients and server data that are few or of another kind.

    Args:
        dataset: "CIFAR-10" or "EMNIST".
        method: "FSL", "FSLsyn", "FedDyn" or "SCAFFOLD".
        C: The number of classes per client.
        lr: The clients' rate eta_l.
        gamma: FSL's weight of the server's learning.
        alpha: FedDyn's regularization.
        server: The server's data; None keeps the method's own.
    """
    if method == "FSLsyn" and server is None:
        server = Glyphs() if dataset == "EMNIST" else stl10_server(504)
    changes = {"data.partition.p": C, "local.lr": lr}
    if server:
        changes["data.server"] = server
    run = BASE_RUNS[dataset, 2].replace(changes)

    rivals = {
        "FedDyn": fl.algorithms.FedDyn(alpha=alpha),
        "SCAFFOLD": fl.algorithms.SCAFFOLD(lr=None),
    }
    return run.replace(algorithm=rivals.get(method, fl.FSL(gamma=gamma)))


def small(run):
    """Return a run that takes minutes on two cores; `NOTES` says what it changes."""
    changes = {
        "model": fl.CNN(channels=[8, 16], hidden=32),
        "rounds": 30,
        "replicates": 2,
        "eval_every": 1,
    }
    if _is_pretrained(run):
        changes["algorithm.pretrain"] = 20

    if isinstance(run.data.dataset, fl.data.Emnist):
        emnist = fl.data.ParquetImages(path="emnist47")
        dataset = fl.data.Subset(dataset=emnist, test=900, classes=45)
        changes |= {"data.clients": 45, "local.batch_size": 20}
        if isinstance(run.data.server, Glyphs):
            changes["data.server"] = Glyphs(characters=fl.data.EMNIST_LABELS[:45])
    else:
        dataset = fl.data.Subset(dataset=run.data.dataset, train=6000, test=1000)
        changes |= _small_cifar10(run)
    return run.replace(changes).replace({"data.dataset": dataset})


def _small_cifar10(run):
    """Return what scale `small` changes in the data of a run on CIFAR-10."""
    is_scenario1 = run.data.clients < 100
    if is_scenario1:
        changes = {"data.clients": 10, "local.batch_size": 20}
    else:
        changes = {"data.clients": 100}

    if isinstance(run.data.server, fl.data.OtherDatasetServer):
        changes["data.server"] = fl.IidServer(n0=run.data.server.n0)
    elif is_scenario1:
        changes["data.server.n0"] = run.data.server.n0 // 10
    return changes


def _is_pretrained(run):
    return isinstance(run.algorithm, fl.FSL) and run.algorithm.pretrain > 0


def smoke(run):
    """Return two rounds of a run, with a narrow network and little pre-training."""
    run = two_rounds(run).replace(model=fl.CNN(channels=[4, 4], hidden=8))
    return run.replace({"algorithm.pretrain": 1}) if _is_pretrained(run) else run


def medium(run):
    """Return scale `small` for ten times as many rounds."""
    return small(run).replace(rounds=300)


SCALES = {"small": small, "medium": medium, "smoke": smoke}
