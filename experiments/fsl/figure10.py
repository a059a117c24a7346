"""FSL, figure 10: accuracy over rounds of FSL, FSLsyn, FedDyn and SCAFFOLD, CIFAR-10.

Source: Mai, La and Zhang, docs/papers.md#fsl, figure 10.

The runs are those of figure 5, with the same run ids, shown as curves. As in figure 5,
no method is tuned, and the local rates and numbers of classes are our choice.

Run it with `raysafl run experiments/fsl/figure10.py`. Its 64 entries with 3 seeds each
take about 105 hours of one core, so use a GPU; with `--scale small` they take about 5
minutes on two cores.
"""

from experiments.fsl.figure5_cifar10 import SWEEP as FIGURE5
from experiments.fsl.sweeps import curves_of_figure5

COMPARISON = curves_of_figure5(10, "CIFAR-10", FIGURE5, __doc__)
SWEEP = COMPARISON.sweep
