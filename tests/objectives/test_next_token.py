"""The next token: one per sample, or one after each position."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from raysafl.objectives import NextToken

RNG = torch.Generator().manual_seed(0)
OUTPUTS = torch.randn(6, 5, 9, generator=RNG)
TARGETS = torch.randint(9, (6, 5), generator=RNG)


def values(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, object]:
    return {
        name: metric.value(metric.sums(outputs, targets).double().numpy(), len(targets))
        for name, metric in NextToken().measures(9).items()
    }


def test_the_loss_of_a_sample_is_the_mean_over_its_positions() -> None:
    losses = NextToken().losses(OUTPUTS, TARGETS)
    for loss, out_LV, y_L in zip(losses, OUTPUTS, TARGETS, strict=True):
        assert loss == pytest.approx(F.cross_entropy(out_LV, y_L).item(), rel=1e-6)


def test_one_token_per_sample_is_a_class() -> None:
    outputs, targets = OUTPUTS[:, 0], TARGETS[:, 0]
    expected = F.cross_entropy(outputs, targets, reduction="none")
    assert torch.equal(NextToken().losses(outputs, targets), expected)
    hits = (outputs.argmax(1) == targets).double().mean().item()
    assert values(outputs, targets)["accuracy"] == pytest.approx(hits)


def test_accuracy_and_perplexity_are_over_all_tokens() -> None:
    found = values(OUTPUTS, TARGETS)
    hits = (OUTPUTS.argmax(-1) == TARGETS).double().mean().item()
    assert found["accuracy"] == pytest.approx(hits)
    mean = F.cross_entropy(OUTPUTS.flatten(0, 1), TARGETS.flatten()).item()
    assert found["perplexity"] == pytest.approx(np.exp(mean), rel=1e-5)


def test_equal_outputs_have_as_many_choices_as_tokens() -> None:
    assert values(torch.zeros(2, 9), torch.tensor([0, 8]))[
        "perplexity"
    ] == pytest.approx(9)
