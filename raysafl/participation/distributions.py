"""Distributions on the line, from which arbitrary participation takes its probabilities."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from raysafl.core.component import Component
from raysafl.core.text import nearest
from raysafl.participation.sampling import Floats


@cache
def continuous() -> Mapping[str, Any]:
    """scipy's continuous distributions by name; its half second of import, where they are used."""
    from scipy import stats

    return {k: v for k, v in vars(stats).items() if isinstance(v, stats.rv_continuous)}


class Distribution(Component):
    """A continuous distribution. Define `law` in your own file to bring your own."""

    abstract: ClassVar[bool] = True

    def __hash__(self) -> int:
        return hash(self.to_json())

    @abstractmethod
    def law(self) -> tuple[str, dict[str, float]]:
        """Its name in scipy.stats, and the arguments there (shapes, loc, scale)."""

    def masses(self, cells: int) -> Floats:
        """The mass of each of `cells` equal parts of [0, 1], renormalised over [0, 1].

        Raises:
            ValueError: there is no mass on [0, 1].
        """
        name, arguments = self.law()
        edges = np.linspace(0.0, 1.0, cells + 1)
        below, above = (
            np.asarray(getattr(continuous()[name], side)(edges, **arguments), float)
            for side in ("cdf", "sf")
        )
        # Where the cdf is near 1, its differences are rounding; those of 1 - cdf are not.
        mass = np.where(below[1:] < 0.5, below[1:] - below[:-1], above[:-1] - above[1:])
        total = mass.sum()
        if not total > 0:
            raise ValueError(
                f"{self!r} has no mass on [0, 1], where the clients lie; move it there, "
                "for example with loc and scale"
            )
        masses: Floats = mass / total
        return masses

    def rates(self, clients: int, rng: np.random.Generator) -> Floats:
        """One independent draw per client, clipped to [0, 1]."""
        name, arguments = self.law()
        drawn = continuous()[name].ppf(rng.random(clients), **arguments)
        clipped: Floats = np.clip(np.asarray(drawn, float), 0.0, 1.0)
        return clipped


class ScipyDistribution(Distribution):
    """Any continuous distribution of scipy.stats by name: Dist("lognorm", s=1.0, scale=0.2).

    Raises:
        ValueError: the name, or an argument's name, is unknown (the nearest is given), an
            argument is missing, or the values are not allowed.
    """

    kind: ClassVar[str] = "Dist"
    name: str
    params: dict[str, float] = Field(default_factory=dict)

    def __init__(
        self, name: str = "", params: Mapping[str, float] | None = None, **more: Any
    ) -> None:
        more.pop("kind", None)
        super().__init__(**{"name": name, "params": {**(params or {}), **more}})

    @model_validator(mode="after")
    def _known(self) -> "ScipyDistribution":
        if self.name not in continuous():
            raise ValueError(
                f"unknown distribution '{self.name}': {nearest(self.name, continuous())}"
            )
        law = continuous()[self.name]
        shapes = [s.strip() for s in (law.shapes or "").split(",") if s.strip()]
        allowed = [*shapes, "loc", "scale"]
        for given in self.params:
            if given not in allowed:
                raise ValueError(f"{self.name} has no '{given}': {nearest(given, allowed)}")
        if missing := [s for s in shapes if s not in self.params]:
            raise ValueError(f"{self.name} needs {', '.join(f'{s}=...' for s in missing)}")
        if not np.isfinite(law.cdf(0.5, **self.params)):
            raise ValueError(f"{self.name} does not allow {self.params}: scipy.stats gives NaN")
        return self

    def law(self) -> tuple[str, dict[str, float]]:
        """As given."""
        return self.name, dict(self.params)


class Beta(Distribution):
    """Density ~ x^(a-1) (1-x)^(b-1): most mass on the first clients (FAST, appendix B.1.3)."""

    a: float = Field(default=1.0, gt=0)
    b: float = Field(default=10.0, gt=0)

    def law(self) -> tuple[str, dict[str, float]]:
        """scipy's beta."""
        return "beta", {"a": self.a, "b": self.b}


class Gamma(Distribution):
    """Density ~ x^(k-1) exp(-x/theta): mass around k theta = 0.1 (FAST, appendix B.1.3)."""

    k: float = Field(default=10.0, gt=0)
    theta: float = Field(default=0.01, gt=0)

    def law(self) -> tuple[str, dict[str, float]]:
        """scipy's gamma."""
        return "gamma", {"a": self.k, "scale": self.theta}


class Weibull(Distribution):
    """Density ~ x^(k-1) exp(-(x/lam)^k): most mass on the last clients (FAST, appendix B.1.3).

    The paper prints the factor lam/k in front, a slip for k/lam: no density otherwise.
    """

    k: float = Field(default=10.0, gt=0)
    lam: float = Field(default=1.0, gt=0)

    def law(self) -> tuple[str, dict[str, float]]:
        """scipy's weibull_min."""
        return "weibull_min", {"c": self.k, "scale": self.lam}
