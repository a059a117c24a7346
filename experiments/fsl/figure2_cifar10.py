"""FSL, figure 2, CIFAR-10: accuracy and rise time for gamma.

Source: Mai, La and Zhang, docs/papers.md#fsl, figure 2, CIFAR-10 part.

gamma = 0 stands for DS (data sharing), as in the paper. The local rates and the sizes
n0 of the server's dataset are not printed; we took eta_l = 0.01 and 0.05, n0 = 200, 500
and 1000, and C = 2 classes per client with S = 4 clients a round, as in figure 8.

Run it with `raysafl run experiments/fsl/figure2_cifar10.py`. Its 30 entries with 3 seeds
each take about 316 hours of one core, so use a GPU; with `--scale small` they take
about 7 minutes on two cores.
"""

from experiments.fsl.sweeps import figure2

COMPARISON = figure2("CIFAR-10", __doc__, C=2, S=4, server_sizes=(200, 500, 1000))
SWEEP = COMPARISON.sweep
