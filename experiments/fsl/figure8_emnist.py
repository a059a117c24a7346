"""FSL, figure 8, EMNIST: FSL, FSL-p and DS for gamma.

Source: Mai, La and Zhang, docs/papers.md#fsl, figure 8, EMNIST part.

In FSL-p the server trains beside the clients and not after them. DS (data sharing) is
shown at gamma = 0. The paper prints C = 5 classes per client and S = 5 clients a round.
We took n0 = 225 and eta_l = 0.01, as in figure 7.

Run it with `raysafl run experiments/fsl/figure8_emnist.py`. Its 9 entries with 3 seeds
each take about 170 hours of one core, so use a GPU; with `--scale small` they take
about 1 minute on two cores.
"""

from experiments.fsl.sweeps import figure8

COMPARISON = figure8("EMNIST", __doc__, C=5, S=5, n0=225)
SWEEP = COMPARISON.sweep
