"""What FSL's figures (Mai, La and Zhang) share, so that equal cells are equal runs."""

import raysafl as fl
from experiments.tools.datasets import cifar10
from raysafl.sweep.definition import smoke as two_rounds

NOTES = """

Printed (section IV, appendix B): CIFAR-10, 50,000 samples, 10 classes; EMNIST, 108,000 samples, 45
classes; C classes per client, equal samples; networks of tables II, III; E_c = 1, E_s =
ceil(n E_c / (N n0)), B_0 = B, eta_g = sqrt(S), eta_0 = sqrt(S) eta_l K / K_0; 1,000 rounds, three
runs; accuracy as a rolling mean over 20 rounds (`rolling20`), rise time to 90 % of the final.
Scenario 1: N = 10 (CIFAR-10), 45 (EMNIST), n0 = 500, 225, pre-training of 500 epochs at 0.01 for
FSL and DS. Scenario 2: N = 1,000, 450, S = N / 100, B = 10, 50, no pre-training, gamma = 1; the
server's data from c clients (FSL) or from elsewhere (FSLsyn).

Open in the paper, chosen here: D0 holds equally many samples of each class and no client holds
them (the paper samples D0 "from D" and gives the clients all of it: 1 % or less); B = 50 in
scenario 1; DS is FedAvg with eta_g = sqrt(S) whose clients hold all of D0 too; grids that a figure
shows and the text does not name (see each file); glyphs in matplotlib's italic serif. The figures
print no numbers: what the text says of them stands here as claims. EMNIST is tested on all 18,000
images of its 45 classes (printed: 10,000).

Scale `small`: a small CNN, 30 rounds, two seeds, pre-training of 20 epochs, B = 20; CIFAR-10: 6,000
images, tested on 1,000, n0 a tenth, N = 100 in scenario 2; EMNIST: the 340 images a class of
`emnist47` (another split), tested on 900, N = 45. STL-10's place is taken by CIFAR-10 images that
no client holds, so that FSLsyn is no test of another distribution there. It can only show
directions.
"""


def base(dataset, model, clients, server, m, batch_size):
    """A run of FedAvg with eta_g = sqrt(S)."""
    return fl.Run(
        data=fl.Federation(
            dataset=dataset, clients=clients, partition=fl.ClassesPerClient(p=1), server=server
        ),
        model=model,
        algorithm=fl.FedAvg(lr=None),
        participation=fl.Uniform(m=m),
        local=fl.LocalTraining(lr=0.01, batch_size=batch_size, epochs=1),
        rounds=1000,
        replicates=3,
    )


BASES = {  # (data set, scenario)
    ("CIFAR-10", 1): base(cifar10(), fl.FslCifarNet(), 10, fl.StratifiedServer(n0=500), 4, 50),
    ("EMNIST", 1): base(fl.Emnist(), fl.FslEmnistNet(), 45, fl.StratifiedServer(n0=225), 5, 50),
    ("CIFAR-10", 2): base(
        cifar10(), fl.FslCifarNet(), 1000, fl.FromClients(c=10, per_client=50), 10, 10
    ),
    ("EMNIST", 2): base(
        fl.Emnist(), fl.FslEmnistNet(), 450, fl.FromClients(c=9, per_client=50), 5, 50
    ),
}
CLASSES = {"CIFAR-10": (1, 2, 5, 10), "EMNIST": (1, 2, 5, 45)}
GAMMAS = {"CIFAR-10": (0.1, 0.5, 1.0, 1.5, 2.0), "EMNIST": (0.09375, 0.5, 1.0, 1.5, 2.0)}
PARALLEL = "FSL-p"


def stl10(n0):
    """FSLsyn's server data for CIFAR-10: n0 images of STL-10 in nine shared classes."""
    return fl.OtherDatasetServer(dataset=fl.Stl10(), n0=n0, classes=fl.STL10_AS_CIFAR10)


def scenario1(dataset, method, C, S=None, lr=0.01, gamma=1.0, n0=None, pretrain=500):
    """FL, DS (data sharing), FSL or FSL-p with few clients and IID server data."""
    run = BASES[dataset, 1].replace({"data.partition.p": C, "local.lr": lr})
    run = run.replace({"participation.m": S} if S else {})
    run = run.replace({"data.server.n0": n0} if n0 else {})
    if method == "FL":
        return run
    if method == "DS":
        run = run.replace({"data.share": 1.0})
        return run.replace(algorithm=fl.FSL(gamma=0, pretrain=pretrain)) if pretrain else run
    kind = fl.FSLParallel if method == PARALLEL else fl.FSL
    return run.replace(algorithm=kind(gamma=gamma, pretrain=pretrain))


def scenario2(dataset, method, C, lr, gamma=1.0, alpha=0.01, server=None):
    """FSL, FSLsyn, FedDyn or SCAFFOLD with many clients and poor server data."""
    run = BASES[dataset, 2].replace({"data.partition.p": C, "local.lr": lr})
    if method == "FSLsyn":
        server = server or (fl.Glyphs() if dataset == "EMNIST" else stl10(504))
    run = run.replace({"data.server": server} if server else {})
    algorithms = {"FedDyn": fl.FedDyn(alpha=alpha), "SCAFFOLD": fl.SCAFFOLD(lr=None)}
    return run.replace(algorithm=algorithms.get(method, fl.FSL(gamma=gamma)))


def small(run):
    """A run of minutes (see NOTES)."""
    few = run.data.clients < 100
    changes = {"model": fl.CNN(channels=[8, 16], hidden=32), "rounds": 30, "replicates": 2}
    if isinstance(run.algorithm, fl.FSL) and run.algorithm.pretrain:
        changes["algorithm.pretrain"] = 20
    if isinstance(run.data.dataset, fl.Emnist):
        whole = fl.Subset(dataset=fl.ParquetImages(path="emnist47"), test=900, classes=45)
        changes |= {"data.clients": 45, "local.batch_size": 20}
        if isinstance(run.data.server, fl.Glyphs):
            changes["data.server"] = fl.Glyphs(characters=fl.EMNIST_LABELS[:45])
    else:
        whole = fl.Subset(dataset=run.data.dataset, train=6000, test=1000)
        changes |= {"data.clients": 10, "local.batch_size": 20} if few else {"data.clients": 100}
        if isinstance(run.data.server, fl.OtherDatasetServer):
            changes["data.server"] = fl.IidServer(n0=run.data.server.n0)
        elif few:
            changes["data.server.n0"] = run.data.server.n0 // 10
    return run.replace(changes).replace({"data.dataset": whole})


def smoke(run):
    """Two rounds with a narrow network, and one epoch of pre-training."""
    run = two_rounds(run).replace(model=fl.CNN(channels=[4, 4], hidden=8))
    pretrained = isinstance(run.algorithm, fl.FSL) and run.algorithm.pretrain
    return run.replace({"algorithm.pretrain": 1}) if pretrained else run


SCALES = {"small": small, "smoke": smoke}


def slug(dataset):
    """A data set's name in a file's."""
    return dataset.lower().replace("-", "")
