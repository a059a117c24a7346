"""FSL, figure 8, CIFAR-10: FSL, FSL-p and DS for gamma.

Source: Mai, La and Zhang, docs/papers.md#fsl, figure 8, CIFAR-10 part.

In FSL-p the server trains beside the clients and not after them. DS (data sharing) is
shown at gamma = 0. The paper prints C = 2 classes per client and S = 4 clients a round.
We took n0 = 200 and eta_l = 0.01, as in figure 7.

Run it with `raysafl run experiments/fsl/figure8_cifar10.py`. Its 9 entries with 3 seeds
each take about 89 hours of one core, so use a GPU; with `--scale small` they take
about 1 minute on two cores.
"""

from experiments.fsl.sweeps import figure8

COMPARISON = figure8("CIFAR-10", __doc__, C=2, S=4, n0=200)
SWEEP = COMPARISON.sweep
