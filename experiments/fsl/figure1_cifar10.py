"""FSL, figure 1, CIFAR-10: accuracy for C classes per client.

Source: Mai, La and Zhang, docs/papers.md#fsl, figure 1, CIFAR-10 part.

FL is FedAvg, DS is data sharing, and FSL learns at the server with weight gamma. DS and
FSL are pre-trained at the server.

The paper prints n0 = 500 samples at the server, S = 4 clients a round, eta_l = 0.01,
and the gammas N n0 / n, 0.5, 1, 1.5 and 2. The text names only some of the values of C;
we took 1, 2, 5 and all classes.

Run it with `raysafl run experiments/fsl/figure1_cifar10.py`. Its 28 entries with 3 seeds
each take about 269 hours of one core, so use a GPU; with `--scale small` they take
about 8 minutes on two cores.
"""

from experiments.fsl.sweeps import figure1

COMPARISON = figure1("CIFAR-10", __doc__)
SWEEP = COMPARISON.sweep
