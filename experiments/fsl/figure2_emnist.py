"""FSL, figure 2, EMNIST: accuracy and rise time for gamma.

Source: Mai, La and Zhang, docs/papers.md#fsl, figure 2, EMNIST part.

gamma = 0 stands for DS (data sharing), as in the paper. The local rates and the sizes
n0 of the server's dataset are not printed; we took eta_l = 0.01 and 0.05, n0 = 90, 225
and 450, and C = 5 classes per client with S = 5 clients a round, as in figure 8.

Run it with `raysafl run experiments/fsl/figure2_emnist.py`. Its 30 entries with 3 seeds
each take about 600 hours of one core, so use a GPU; with `--scale small` they take
about 5 minutes on two cores.
"""

from experiments.fsl.sweeps import figure2

COMPARISON = figure2("EMNIST", __doc__, C=5, S=5, server_sizes=(90, 225, 450))
SWEEP = COMPARISON.sweep
