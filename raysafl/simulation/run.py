"""run."""

from pydantic import Field, SerializeAsAny, model_validator

from raysafl.core.algorithm import Algorithm, LocalTraining
from raysafl.core.component import Component
from raysafl.core.participation import Participation
from raysafl.core.problem import FederatedData, Model


class Run(Component):
    """A whole configuration. Its id is the hash of its JSON; hardware is no part of it.

    Replicate r is the same run with seed `seed + r`. `eval_every` rounds (and after the last)
    the global model is evaluated on the test set.
    """

    data: SerializeAsAny[FederatedData]
    model: SerializeAsAny[Model]
    algorithm: SerializeAsAny[Algorithm]
    participation: SerializeAsAny[Participation]
    local: LocalTraining
    rounds: int = Field(gt=0)
    replicates: int = Field(default=1, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**63)
    eval_every: int = Field(default=1, gt=0)

    @model_validator(mode="after")
    def _fits(self) -> "Run":
        self.participation.check(self.data.clients)
        if self.algorithm.uses_server_data and not self.data.has_server_data:
            raise ValueError(
                f"{type(self.algorithm).__name__} trains on server data, but data.server is None; "
                "give it, for example data.server=IidServer(n0=1000)"
            )
        return self

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits: equal runs have equal ids."""
        return self.digest()

    @property
    def seeds(self) -> list[int]:
        """One seed per replicate."""
        return [self.seed + r for r in range(self.replicates)]
