"""FSL, figure 7, EMNIST: FSL, its non-incremental form FSL-p, and DS.

Source: Mai, La and Zhang, docs/papers.md#fsl, figure 7, EMNIST part.

In FSL-p the server trains beside the clients, as one more client would, and not after
them. DS is data sharing. The paper prints n0 = 225, eta_l = 0.01 and gamma = 1, but
neither the numbers C of classes per client nor the numbers S of clients a round. We
took C = 1, 2, 5 and S = 5, 15, 45.

Run it with `raysafl run experiments/fsl/figure7_emnist.py`. Its 27 entries with 3 seeds
each take about 1,620 hours of one core, so use a GPU; with `--scale small` they take
about 10 minutes on two cores.
"""

from experiments.fsl.sweeps import figure7

COMPARISON = figure7("EMNIST", __doc__, cohort_sizes=(5, 15, 45), n0=225)
SWEEP = COMPARISON.sweep
