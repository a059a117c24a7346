"""What a trial runs on. Never part of a `Run`: the same run gives the same result anywhere."""

from collections.abc import Mapping, Sequence

from pydantic import Field, field_validator

from raysafl.core.component import Component


class Hardware(Component):
    """A trial's gang: a coordinator, which needs no core of its own, and its client actors.

    `cpus` and `gpus` are shares of one client actor; a GPU can be shared as 1/n (Ray places
    shares, it does not limit memory). `trials` caps how many trials run at once. `autoscale`
    says that the cluster will add nodes, so that what it has now is no limit.
    """

    actors: int = Field(default=1, gt=0)
    cpus: float = Field(default=1.0, gt=0)
    gpus: float = Field(default=0.0, ge=0)
    trials: int | None = Field(default=None, gt=0)
    autoscale: bool = False

    @field_validator("gpus")
    @classmethod
    def _share(cls, gpus: float) -> float:
        if gpus > 1 and gpus != int(gpus):
            raise ValueError("more than one GPU per actor must be a whole number")
        if 0 < gpus < 1 and abs(round(1 / gpus) * gpus - 1) > 0.02:
            raise ValueError("a GPU is shared as 1/n: 0.5, 0.33, 0.25, ...")
        return gpus

    def bundle(self) -> dict[str, float]:
        """The resources of one client actor, in Ray's words."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})

    def needs(self) -> str:
        """What one trial needs, in words."""
        return f"{self.actors} client actor(s) of {self.cpus:g} CPU and {self.gpus:g} GPU each"

    def check(self, nodes: Sequence[Mapping[str, float]]) -> None:
        """Raise ValueError if one trial does not fit the nodes: Ray would wait for ever."""
        free = [dict(node) for node in nodes]
        for _ in range(0 if self.autoscale else self.actors):
            for node in free:
                if all(node.get(name, 0) + 1e-6 >= need for name, need in self.bundle().items()):
                    for name, need in self.bundle().items():
                        node[name] -= need
                    break
            else:
                raise ValueError(self._refusal(nodes))

    def _refusal(self, nodes: Sequence[Mapping[str, float]]) -> str:
        has = {name: sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU")}
        where = "this machine" if len(nodes) == 1 else f"the cluster's {len(nodes)} nodes"
        return (
            f"a trial needs {self.needs()}, but {where} offer(s) {has['CPU']:g} CPU and "
            f"{has['GPU']:g} GPU; lower --actors, --cpus or --gpus"
        )
