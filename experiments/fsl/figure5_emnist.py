"""FSL, figure 5, EMNIST: accuracy over eta_l and C, four untuned methods.

Source: Mai, La and Zhang, docs/papers.md#fsl, figure 5, EMNIST part.

The paper prints B = 50, S = 5, gamma = 1 and alpha = 0.01 of FedDyn, but neither the
local rates eta_l nor the numbers C of classes per client. Of the rates, table I names
0.02 and 0.05. In FSLsyn the server learns from 675 images of drawn letters and digits
(glyphs).

Run it with `raysafl run experiments/fsl/figure5_emnist.py`. Its 64 entries with 3 seeds
each take about 486 hours of one core, so use a GPU; with `--scale small` they take
about 12 minutes on two cores.
"""

from experiments.fsl.sweeps import RIVALS, SERVER_LEARNING, figure5
from experiments.papercheck.comparison import Claim

COMPARISON = figure5(
    "EMNIST",
    __doc__,
    claims=[
        *(
            Claim(
                text=f"FSL and FSLsyn have an accuracy comparable to {other}'s (5 %)",
                order=[{"method": own}, {"method": other}],
                within=5.0,
            )
            for own in SERVER_LEARNING
            for other in RIVALS
        ),
        Claim(
            text="FSLsyn is comparable to FSL (5 %)",
            order=[{"method": "FSL"}, {"method": "FSLsyn"}],
            within=5.0,
        ),
    ],
)
SWEEP = COMPARISON.sweep
