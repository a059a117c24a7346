"""FSL, figure 5, CIFAR-10: accuracy over eta_l and C, four untuned methods.

Source: Mai, La and Zhang, docs/papers.md#fsl, figure 5, CIFAR-10 part.

The paper prints B = 10, S = 10, gamma = 1 and alpha = 0.01 of FedDyn, but neither the
local rates eta_l nor the numbers C of classes per client. Of the rates, table I names
0.02 and 0.05. In FSLsyn the server learns from 504 images of STL-10, which must lie in
the data folder.

Run it with `raysafl run experiments/fsl/figure5_cifar10.py`. Its 64 entries with 3 seeds
each take about 107 hours of one core, so use a GPU; with `--scale small` they take
about 5 minutes on two cores.
"""

from experiments.fsl.sweeps import RIVALS, SERVER_LEARNING, figure5
from experiments.papercheck.comparison import Claim

COMPARISON = figure5(
    "CIFAR-10",
    __doc__,
    claims=[
        *(
            Claim(
                text=(
                    f"{own} has much better accuracy than {other} in very non-IID "
                    "cases (C <= 2)"
                ),
                order=[{"method": own}, {"method": other}],
                where={"C": C},
            )
            for own in SERVER_LEARNING
            for other in RIVALS
            for C in (1, 2)
        ),
        Claim(
            text="FSLsyn is slightly worse than FSL",
            order=[{"method": "FSL"}, {"method": "FSLsyn"}],
        ),
    ],
)
SWEEP = COMPARISON.sweep
