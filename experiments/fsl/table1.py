"""FSL, table I: accuracy after 1,000 rounds and rounds to accuracy 0.5, CIFAR-10, C = 2.

Each printed number is the best over a tuned parameter (FedDyn's alpha, FSL's gamma); it stands
beside every value tried here, so that the nearest can be seen. n0 = 250 is read as 25 samples from
each of the ten clients. FLSyn (FSLsyn elsewhere) learns from STL-10, which must be at hand.
"""

import raysafl as fl
from experiments.fsl.setting import NOTES, SCALES, scenario2, stl10
from experiments.tools.printed_tables import printed

PAPER = printed("""
method, n0 | acc    T
FedDyn, 0  | 0.5779 502
FLSyn, 504 | 0.5763 339
FLSyn, 720 | 0.5835 333
FSL, 250   | 0.5845 238
FSL, 500   | 0.6144 203
""")
GAMMAS = (0.6, 0.8, 1.0, 1.2)
TUNED = {"FedDyn": (0.01, 0.05, 0.1, 0.5), "FLSyn": GAMMAS, "FSL": GAMMAS}
CELLS = [(name, n0, x) for name, n0, what in PAPER if what == "acc" for x in TUNED[name]]


def run(method, n0, tuned):
    if method == "FedDyn":
        return scenario2("CIFAR-10", "FedDyn", 2, lr=0.05, alpha=tuned)
    if method == "FLSyn":
        return scenario2("CIFAR-10", "FSLsyn", 2, lr=0.02, gamma=tuned, server=stl10(n0))
    server = fl.FromClients(c=10, per_client=n0 // 10)
    return scenario2("CIFAR-10", "FSL", 2, lr=0.02, gamma=tuned, server=server)


SWEEP = fl.Sweep(
    name="fsl_table1",
    title="FSL, table I: CIFAR-10, C = 2; tuned is FedDyn's alpha or FSL's gamma",
    axes=("method", "n0", "tuned"),
    runs={key: run(*key) for key in CELLS},
    table=fl.Table(
        rows=["method", "n0"],
        columns=["tuned"],
        statistic="rolling20",
        also=["final", "best", "rounds_to_50"],
        scale=1.0,
        unit="",
        source="FSL, table I",
    ),
    paper={(name, n0, x): PAPER[name, n0, "acc"] for name, n0, x in CELLS},
    more={"rounds_to_50": {(name, n0, x): PAPER[name, n0, "T"] for name, n0, x in CELLS}},
    claims=[
        fl.Claim(
            text="the accuracy improves with n0 (FSL)",
            order=[{"n0": 500}, {"n0": 250}],
            where={"method": "FSL"},
        ),
        fl.Claim(
            text="the accuracy improves with n0 (FLSyn)",
            order=[{"n0": 720}, {"n0": 504}],
            where={"method": "FLSyn"},
        ),
        fl.Claim(
            text="FSL with n0 = 250 is still slightly better than FLSyn with n0 = 720",
            order=[{"method": "FSL", "n0": 250}, {"method": "FLSyn", "n0": 720}],
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
