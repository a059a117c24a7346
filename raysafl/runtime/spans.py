"""What an evaluation computes: spans of the test set and of validation sets.

A span has a fixed length, and its sums are the same to the last bit whichever process
computes them. They are added in the order of the spans. So the scores of models do not
depend on how spans are divided among actors, nor on what else is evaluated.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from raysafl.core.objective import Value
from raysafl.core.work import Scores, scores_on
from raysafl.runtime.population import Population
from raysafl.training.evaluation import Measures, span_starts, sum_of_spans

# Stands for the test set among the numbers of validation sets.
TEST = -1


class Span(NamedTuple):
    """A span of samples on which some models are evaluated.

    Args:
        samples: TEST, or the number of a validation set of the population.
        start: The position of the first sample of the span in that set.
        rows: The positions of the models among those of the evaluation.
    """

    samples: int
    start: int
    rows: Sequence[int]


def spans_of(
    cells: Sequence[int], population: Population, test_samples: int
) -> list[Span]:
    """Return the spans that give the scores of some cells.

    Args:
        cells: The cells, in the order of the models.
        population: Knows which cells have validation samples.
        test_samples: The number of samples in the test set.
    """
    everyone = range(len(cells))
    spans = [Span(TEST, start, everyone) for start in span_starts(test_samples)]
    groups: dict[int, list[int]] = {}
    for row, cell in enumerate(cells):
        number = population.validation_of[cell]
        if number is not None:
            groups.setdefault(number, []).append(row)
    for number, rows in groups.items():
        size = len(population.validation_sets[number])
        spans += [Span(number, start, rows) for start in span_starts(size)]
    return spans


def scores_of_spans(
    cells: Sequence[int],
    spans: Iterable[Span],
    sums: Iterable[Tensor],
    measures: Measures,
    sizes: Mapping[int, int],
) -> Scores:
    """Return the scores of the cells from the sums over their spans.

    Args:
        cells: The cells, in the order of the models.
        spans: What `spans_of` returned.
        sums: For each span the sums [N, R] of its models.
        measures: What is measured.
        sizes: The number of samples of TEST and of each validation set.
    """
    found: dict[int, tuple[Sequence[int], list[Tensor]]] = {}
    for span, sums_NR in zip(spans, sums, strict=True):
        found.setdefault(span.samples, (span.rows, []))[1].append(sums_NR)
    scores: dict[int, dict[str, Value]] = {cell: {} for cell in cells}
    for samples, (rows, parts) in found.items():
        values = measures.values(sum_of_spans(parts), sizes[samples])
        prefix = "test" if samples == TEST else "val"
        own = scores_on(prefix, [cells[row] for row in rows], values)
        for cell, more in own.items():
            scores[cell] |= more
    return scores


def sizes_of(population: Population, test_samples: int) -> dict[int, int]:
    """Return the number of samples of TEST and of each validation set."""
    sets = {i: len(own) for i, own in enumerate(population.validation_sets)}
    return {TEST: test_samples, **sets}
