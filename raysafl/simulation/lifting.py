"""One generator of an algorithm that stands for the rounds of many replicates.

An algorithm's `round` is written for one replicate. Here it is run once for all replicates of
a group: each tensor that it sees is a batched tensor of `torch.func`, as inside of
`torch.func.vmap`, which stands for a tensor of each replicate. Four rules make that possible,
and an algorithm that breaks one is run replicate by replicate, with the same numbers:

1. It computes with torch on what it is given, by the operators of `SAME_BITS`.
2. It remembers clients by `State.recall` and `State.remember`.
3. It branches on draws of `key`, on the size of the cohort and on its own fields, and not on
   values of tensors.
4. It does not look at single ids.

Where it branches on a draw, the replicates are divided by the outcome (`Fork`).

An algorithm that remembers clients keeps a vector [P] for each client that has trained. Those
of all replicates are rows of one matrix (`ClientTable`), so that a round reads and writes them
by one operator each.

The functions of functorch that are used here are private; `pyproject.toml` bounds the version
of torch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._C import _functorch as untyped_functorch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from raysafl.core.algorithm import (
    Algorithm,
    ClientVectors,
    CohortIds,
    CountSamples,
    LocalTraining,
    Request,
    State,
)
from raysafl.core.component import is_users_class
from raysafl.core.problem import EVERYONE, SERVER
from raysafl.core.randomness import Keys, checksum
from raysafl.core.work import Floats, Ints
from raysafl.simulation.turns import Fork, Turn, wrong_part

# The fields in which algorithms of a group differ: a number of each replicate, or for an
# algorithm inside of another one, its own such fields.
Numbers: TypeAlias = "Mapping[str, Tensor | Numbers]"

functorch: Any = untyped_functorch
# Whether this torch has the private functions that are used here. Without them, all replicates
# take their rounds one by one.
CAN_LIFT = all(
    hasattr(functorch, name)
    for name in (
        "_add_batch_dim",
        "_remove_batch_dim",
        "_set_vmap_fallback_enabled",
        "_vmap_decrement_nesting",
        "_vmap_increment_nesting",
        "is_batchedtensor",
    )
)
# A batched tensor of the only level of vmap that there is here.
LEVEL = 1
# Operators that give each replicate the bits that it has alone: those that round each number
# correctly (exp, for example, does not: a number's last bit depends on its place in memory),
# sums over clients or parameters, whose order is the same, and those that move numbers. Matrix
# products are not among them.
EXACT = """
abs add bitwise_and bitwise_not bitwise_or ceil clamp clamp_max clamp_min div eq floor ge gt
isfinite isinf isnan le logical_and logical_not logical_or lt maximum minimum mul ne neg
reciprocal relu round rsub sgn sign sqrt square sub trunc where
abs_ add_ clamp_ clamp_max_ clamp_min_ copy_ div_ fill_ floor_ masked_fill_ mul_ neg_ round_
sgn_ sign_ sqrt_ square_ sub_ zero_
"""
SUMS = """
all amax amin any argmax argmin count_nonzero linalg_vector_norm max mean median min sum
"""
MOVES = """
_local_scalar_dense _to_copy _unsafe_view alias arange as_strided cat clone detach empty
empty_like expand full full_like gather index index_fill index_fill_ index_put index_put_
index_select lift_fresh
masked_fill new_empty new_full new_ones new_zeros ones ones_like permute repeat scalar_tensor
scatter select slice split split_with_sizes squeeze stack t transpose unbind unsqueeze view
zeros zeros_like
"""
SAME_BITS = frozenset(f"{EXACT} {SUMS} {MOVES}".split())
# Of these operators, only the ones with such a second argument: torch computes other powers
# and norms by functions that are not rounded correctly.
WITH_NUMBERS = {
    "pow": (0.5, 2, 3),
    "pow_": (0.5, 2, 3),
    "linalg_vector_norm": (1, 2, math.inf),
}

SUMS_OF_NUMBERS = ("linalg_vector_norm", "mean", "sum")
# The largest number of terms of a sum that torch leaves to one thread.
GRAIN = 32_768

# What was raised since a generator was sent its answer. An algorithm of the user's may catch
# it, and go on with other numbers than alone, where it would not be raised.
_raised: list[BaseException] = []


class NotLiftable(BaseException):
    """An algorithm does what cannot be done for many replicates at once."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        _raised.append(self)


class _Errors(TorchFunctionMode):
    """Notes what torch raises."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except BaseException as error:
            _raised.append(error)
            raise


class _SameBits(TorchDispatchMode):
    """Refuses operators that may give a replicate other bits than it has alone."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise torch would import its compiler, which takes a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        kwargs = kwargs or {}
        has_same_bits = name in SAME_BITS
        if name in WITH_NUMBERS:
            number = args[1] if len(args) > 1 else 2
            has_same_bits = (
                type(number) in (int, float) and number in WITH_NUMBERS[name]
            )
        if name == "index":
            # What is chosen in a later axis lies otherwise in memory, and is summed otherwise.
            is_chosen = [own is not None for own in args[1]]
            has_same_bits = is_chosen == sorted(is_chosen, reverse=True)
        result: Any = func(*args, **kwargs) if has_same_bits else None
        if has_same_bits and kwargs.get("alpha", 1) != 1:
            # It is rounded once or twice, depending on the place in memory.
            has_same_bits = not result.is_floating_point()
        if has_same_bits and name in SUMS_OF_NUMBERS and torch.get_num_threads() > 1:
            # Alone, torch would divide a sum of so many numbers among its threads.
            count = args[0].numel() // max(1, result.numel())
            has_same_bits = result.ndim > 1 or count <= GRAIN
        if not has_same_bits:
            raise NotLiftable(
                f"it computes with `{name}`, which may round differently for many replicates"
            )
        return result


class _Draw:
    """A number of each replicate that is drawn uniformly from 0 to 1.

    It can be compared, and nothing else.
    """

    def __init__(self, u_R: NDArray[np.float64]) -> None:
        self.u_R = u_R

    def __lt__(self, bound: Any) -> "_Outcome":
        return _Outcome(self.u_R < _numbers(bound))

    def __le__(self, bound: Any) -> "_Outcome":
        return _Outcome(self.u_R <= _numbers(bound))

    def __gt__(self, bound: Any) -> "_Outcome":
        return _Outcome(self.u_R > _numbers(bound))

    def __ge__(self, bound: Any) -> "_Outcome":
        return _Outcome(self.u_R >= _numbers(bound))

    def __getattr__(self, name: str) -> NoReturn:
        raise NotLiftable("it does more with a draw than to compare it")

    __bool__ = __eq__ = __float__ = __hash__ = __repr__ = __getattr__  # type: ignore[assignment]


class _Outcome:
    """Whether a comparison holds, for each replicate; as a condition, it divides them."""

    def __init__(self, mask_R: NDArray[np.bool_]) -> None:
        self.mask_R = mask_R

    def __bool__(self) -> bool:
        if self.mask_R.all() or not self.mask_R.any():
            return bool(self.mask_R[0])
        fork = Fork(self.mask_R)
        _raised.append(fork)
        raise fork

    def __invert__(self) -> "_Outcome":
        return _Outcome(~self.mask_R)

    def __eq__(self, other: object) -> NoReturn:
        raise NotLiftable("it does more with an outcome than to branch on it")

    __hash__ = __repr__ = __eq__  # type: ignore[assignment]


class _Generator:
    """What a key returns for a purpose: of numpy's generator, only single draws."""

    def __init__(self, keys: Keys, purpose: str) -> None:
        self._keys = keys
        self._purpose = purpose
        self._drawn = 0

    def random(self) -> _Draw:
        """Return the next number of each replicate."""
        # Imported here, because numba takes some tenths of a second to import.
        from raysafl.kernels.draws import draw_uniforms

        self._drawn += 1
        seeds_R, round = self._keys
        u_RN = np.empty((len(seeds_R), self._drawn))
        draw_uniforms(seeds_R, checksum(self._purpose), round, u_RN)
        return _Draw(u_RN[:, -1])

    def __getattr__(self, name: str) -> NoReturn:
        raise NotLiftable(f"it draws by `{name}` from its key")


class _Key:
    """The keys of all replicates, in place of a `Key`."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.round = keys.round

    def __call__(self, purpose: str) -> _Generator:
        return _Generator(self._keys, purpose)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise NotLiftable("it looks at the class of its key")

    def __getattr__(self, name: str) -> NoReturn:
        raise NotLiftable(f"it uses `{name}` of its key")

    def __repr__(self, *others: object) -> NoReturn:
        raise NotLiftable("it looks at its key as a whole")

    __eq__ = __hash__ = __repr__


class _Ids(CohortIds):
    """A cohort of each replicate, of which only the size can be seen."""

    def __init__(self, ids_RM: Ints) -> None:
        self.ids_RM = ids_RM

    def __len__(self) -> int:
        size: int = self.ids_RM.shape[1]
        return size

    def as_index(self) -> Tensor:
        """Return the ids of each replicate."""
        return lifted(torch.from_numpy(self.ids_RM))

    def __getitem__(self, which: Any) -> NoReturn:
        raise NotLiftable("it looks at single ids")

    def __iter__(self) -> NoReturn:
        raise NotLiftable("it looks at single ids")

    __repr__ = __iter__

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise NotLiftable("it looks at the class of the ids")

    def __eq__(self, other: object) -> NoReturn:
        raise NotLiftable("it compares ids")

    __hash__ = None  # type: ignore[assignment]


def lifted(value_R: Tensor) -> Tensor:
    """Return a tensor with an axis of replicates as one that stands for those of each."""
    batched: Tensor = functorch._add_batch_dim(value_R, 0, LEVEL)
    return batched


def bare(value: Any, size: int) -> Tensor:
    """Return a tensor with an axis of replicates from one that stands for those of each."""
    if not isinstance(value, Tensor):
        raise NotLiftable(f"it gives {type(value).__name__} where a tensor is needed")
    if functorch.is_batchedtensor(value):
        with_axis: Tensor = functorch._remove_batch_dim(value, LEVEL, size, 0)
        return with_axis
    return value.expand(size, *value.shape)


def _numbers(value: Any) -> Any:
    """Return a number, or the number of each replicate, of a bound."""
    if isinstance(value, Tensor):
        return functorch._remove_batch_dim(value, LEVEL, 0, 0).numpy()
    return value


def differences(algorithms: Sequence[Algorithm]) -> Numbers:
    """Return the fields in which algorithms of one shape differ, as columns."""
    first, *others = algorithms
    if all(own is first for own in others):
        return {}
    columns: dict[str, Tensor | Numbers] = {}
    for name, value in first:
        values = [getattr(own, name) for own in algorithms]
        if isinstance(value, Algorithm):
            if inner := differences(values):
                columns[name] = inner
        elif can_be_column(first, name) and any(own != value for own in values):
            columns[name] = torch.tensor(values, dtype=torch.float64)
    return columns


def can_be_column(algorithm: Algorithm, name: str) -> bool:
    """Return whether algorithms of a group may differ in a field.

    It is a number, of a class of raysafl's own: these compute with their numbers and tensors.
    The user's may do anything with a number that a column cannot do.
    """
    is_number = type(getattr(algorithm, name)) is float
    return is_number and not is_users_class(type(algorithm))


def some_of(columns: Numbers, rows: Tensor) -> Numbers:
    """Return the columns of some replicates."""
    return {
        name: own[rows] if isinstance(own, Tensor) else some_of(own, rows)
        for name, own in columns.items()
    }


def with_columns(algorithm: Algorithm, columns: Numbers) -> Algorithm:
    """Return an algorithm whose fields that differ stand for those of all replicates."""
    if not columns:
        return algorithm
    fields = {
        name: lifted(own)
        if isinstance(own, Tensor)
        else with_columns(getattr(algorithm, name), own)
        for name, own in columns.items()
    }
    return algorithm.model_copy(update=fields)


class ClientTable:
    """Vectors of clients as rows of a matrix, which grows. Row 0 is zero: who has none reads it.

    Args:
        num_parameters: The number P of the matrix's columns.
    """

    def __init__(self, num_parameters: int) -> None:
        self.rows_SP = torch.zeros(1, num_parameters)
        self._free: list[int] = []

    def read(self, owners: "Sequence[ClientRows]", ids_RM: Ints) -> Tensor:
        """Return the vectors [R, M, P] of clients of some replicates; zeros without one."""
        rows = [
            owner.row_of[i] if i in owner.row_of else 0
            for owner, ids_M in zip(owners, ids_RM.tolist(), strict=True)
            for i in ids_M
        ]
        row_TP = self.rows_SP[torch.tensor(rows, dtype=torch.int64)]
        return row_TP.view(*ids_RM.shape, row_TP.shape[1])

    def write(
        self, owners: "Sequence[ClientRows]", ids_RM: Ints, vector_RMP: Tensor
    ) -> None:
        """Write the vectors of distinct clients of some replicates."""
        pairs = [
            (owner.row_of, i)
            for owner, ids_M in zip(owners, ids_RM.tolist(), strict=True)
            for i in ids_M
        ]
        new = [pair for pair in pairs if pair[1] not in pair[0]]
        if len(new) > len(self._free):
            self._grow(len(new) - len(self._free))
        for (row_of, i), row in zip(new, self._free, strict=False):
            row_of[i] = row
        del self._free[: len(new)]
        rows = torch.tensor([row_of[i] for row_of, i in pairs], dtype=torch.int64)
        self.rows_SP.index_copy_(0, rows, vector_RMP.flatten(0, 1))

    def free(self, owner: "ClientRows") -> None:
        """Let the rows of a replicate be those of other clients."""
        self._free += owner.row_of.values()
        owner.row_of = {}

    def _grow(self, rows: int) -> None:
        """Make room for at least so many rows more."""
        before = self.rows_SP
        size = len(before) + max(rows, len(before) // 2)
        self.rows_SP = before.new_empty(size, before.shape[1])
        self.rows_SP[: len(before)] = before
        self._free += range(len(before), size)


class ClientRows(Mapping[int, Tensor]):
    """The vectors of one replicate's clients in a table: a mapping from ids to vectors.

    Args:
        table: The table.
        vectors: The vectors that are put into it.

    Attributes:
        row_of: The row of each client that has one, in the order in which they got it.
    """

    def __init__(self, table: ClientTable, vectors: Mapping[int, Tensor]) -> None:
        self.table = table
        self.row_of: dict[int, int] = {}
        if vectors:
            ids_1M = np.array([list(vectors)])
            table.write([self], ids_1M, torch.stack([*vectors.values()])[None])

    def __getitem__(self, client: int) -> Tensor:
        return self.table.rows_SP[self.row_of[client]].clone()

    def __iter__(self) -> Iterator[int]:
        return iter(self.row_of)

    def __len__(self) -> int:
        return len(self.row_of)

    def taken_out(self) -> dict[int, Tensor]:
        """Return the vectors as a dictionary of its own, and give their rows back."""
        vectors = dict(self)
        self.table.free(self)
        return vectors


class LiftedClients(ClientVectors):
    """The clients' vectors of a group, with what a round will have written into them.

    Args:
        owners: The vectors of each replicate's clients.
        ids_RM: The clients that remember something in this round, if any do.
        vector_RMP: What they will remember.
    """

    def __init__(
        self,
        owners: Sequence[ClientRows],
        ids_RM: Ints | None = None,
        vector_RMP: Tensor | None = None,
    ) -> None:
        self.owners = owners
        self.table = owners[0].table
        self.ids_RM = ids_RM
        self.vector_RMP = vector_RMP

    def recall(self, ids: Sequence[int]) -> Tensor:
        """Return the vectors of the cohort."""
        return lifted(self.table.read(self.owners, self._cohort(ids)))

    def remember(self, ids: Sequence[int], row_MP: Tensor) -> "LiftedClients":
        """Return these vectors with those of the cohort replaced, once the round ends."""
        ids_RM = self._cohort(ids)
        vector_RMP = bare(row_MP, len(self.owners))
        shape = (*ids_RM.shape, self.table.rows_SP.shape[1])
        if vector_RMP.dtype != torch.float32 or vector_RMP.shape != shape:
            raise NotLiftable("what it remembers of a client is no float32 vector [P]")
        return LiftedClients(self.owners, ids_RM, vector_RMP)

    def write(self) -> None:
        """Write what is remembered, once the round has ended."""
        if self.ids_RM is not None and self.vector_RMP is not None:
            self.table.write(self.owners, self.ids_RM, self.vector_RMP)

    def _cohort(self, ids: Sequence[int]) -> Ints:
        if self.vector_RMP is not None or not isinstance(ids, _Ids):
            raise NotLiftable(
                "it recalls or remembers others than the cohort, or does so after it remembered"
            )
        return ids.ids_RM

    def _refused(self, *_: Any) -> NoReturn:
        raise NotLiftable("it looks at `state.clients`, and not by `state.recall(ids)`")

    __getitem__ = __iter__ = __len__ = __contains__ = _refused


class Lifted(Turn):
    """A round of a group of replicates, which one generator takes for all of them.

    Args:
        algorithm: The algorithm of the first one.
        columns: The fields in which the others' differ from it.
        state: Their states: each tensor has an axis of replicates.
        ids_RM: Their cohorts.
        keys: Their sources of randomness.
        is_users_own: Whether the algorithm has a part of the user's own.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        columns: Numbers,
        state: State,
        ids_RM: Ints,
        keys: Keys,
        is_users_own: bool,
    ) -> None:
        self.algorithm = algorithm
        self.after = state
        assert isinstance(state.clients, LiftedClients)
        self._clients = state.clients
        self._columns = columns
        self._size, self._cohort_size = ids_RM.shape
        self._ids_RM = ids_RM
        self._ids: Any = _Ids(ids_RM)
        self._key: Any = _Key(keys)
        self._generator: Any = None
        self._request: Any = None
        self._has_asked = False
        # raysafl's own are known to use no others than the operators of `SAME_BITS`.
        self._is_users_own = is_users_own

    def send(self, answer: Any) -> Request | CountSamples | None:
        """Go on with an answer; see `Turn`.

        Raises:
            Fork: The replicates go different ways from here.
            NotLiftable: The algorithm does what cannot be done for all of them at once, or
                raises an error, which may be one replicate's.
        """
        _raised.clear()
        functorch._vmap_increment_nesting(self._size, "error")
        try:
            if self._is_users_own:
                # An operator that torch would carry out for one after the other is refused.
                functorch._set_vmap_fallback_enabled(False)
                with _SameBits(), _Errors():  # type: ignore[no-untyped-call]
                    request = self._sent(answer)
            else:
                request = self._sent(answer)
        except (Fork, NotLiftable, KeyboardInterrupt):
            raise
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            if "vmap:" in reason or "data pointer" in reason:
                reason = "it uses the value of a tensor as a number or as a condition"
            raise NotLiftable(reason) from error
        finally:
            functorch._set_vmap_fallback_enabled(True)
            functorch._vmap_decrement_nesting()
        if _raised:
            raise NotLiftable("it catches an error that it would not meet alone")
        self._request = request
        if request is not None:
            self._check(request)
        return request

    def _sent(self, answer: Any) -> Request | CountSamples | None:
        if self._generator is None:
            algorithm = with_columns(self.algorithm, self._columns)
            server = {name: lifted(own) for name, own in self.after.server.items()}
            state = State(lifted(self.after.w_P), server, self.after.clients)
            self._generator = algorithm.turn(state, self._ids, self._key)
        elif isinstance(answer, Tensor):
            answer = lifted(answer)
        else:
            # The moments, which are the last column, are for the simulation.
            answer = type(answer)(*map(lifted, answer[:-1]))
        try:
            request: Request | CountSamples = self._generator.send(answer)
        except StopIteration as end:
            self.after = self._returned(end.value)
            return None
        return request

    def _returned(self, state: Any) -> State:
        """Return the new state, with an axis of replicates in each tensor."""
        size = self._size
        before = self.after
        if self._cohort_size and not self._has_asked:
            raise NotLiftable("it returns before it yields a request")
        w_RP = bare(state.w_P, size)
        if w_RP.shape != before.w_P.shape:
            raise NotLiftable("it returns parameters of another shape")
        server = {name: bare(own, size) for name, own in state.server.items()}
        clients = state.clients
        if (
            type(clients) is dict
            and not clients
            and not any(own.row_of for own in self._clients.owners)
        ):
            clients = self._clients
        if not isinstance(clients, LiftedClients):
            raise NotLiftable(
                "it returns `clients` that are not from state.remember(...)"
            )
        return State(w_RP, server, clients)

    def _check(self, request: Any) -> None:
        """Refuse a request with which anything is wrong: alone, its error is told."""
        if not isinstance(request, Request | CountSamples):
            raise NotLiftable("it yields what is no request")
        ids = request.ids
        if not len(ids) or (
            ids is not self._ids and any(i not in (EVERYONE, SERVER) for i in ids)
        ):
            raise NotLiftable("it asks for others than the cohort")
        if isinstance(request, CountSamples):
            return
        self._has_asked = True
        weight_RM = self.column("weight_M")
        if wrong_part(request, self.after.w_P.shape[1], weight_RM):
            raise NotLiftable("it yields a request that cannot be used")

    def some(self, mask_R: NDArray[np.bool_]) -> None:
        """Return None: the two ways are gone from the beginning of the round."""

    def ids(self) -> Ints:
        """Return the clients that the request names, [R, M]."""
        ids = self._request.ids
        if ids is self._ids:
            return self._ids_RM
        return np.full((self._size, len(ids)), ids, np.int64)

    def prox(self) -> Floats | None:
        """Return `prox`, which may be a field in which replicates differ, as an array."""
        prox = self._request.prox
        if not isinstance(prox, Tensor) and prox == 0:
            return None
        return np.full(self._size, _numbers(prox), np.float64)

    def remember(self, clients: list[Mapping[int, Tensor]], places: Ints) -> None:
        """Write into the table what is remembered."""
        assert isinstance(self.after.clients, LiftedClients)
        self.after.clients.write()

    def column(self, name: str) -> Tensor | None:
        """Return a tensor of the request with an axis of replicates, if there is one."""
        tensor = getattr(self._request, name, None)
        return None if tensor is None else bare(tensor, self._size)

    def locals(self) -> Sequence[LocalTraining]:
        """Return the one local training of the request."""
        return [self._request.local]
