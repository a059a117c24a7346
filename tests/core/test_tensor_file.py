"""The file of tensors and values: it gives back what it was given, with few copies."""

import torch

from raysafl.core import tensor_file


def test_tensors_that_share_memory_come_back_each_as_it_was() -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    given = {
        "whole": matrix,
        "again": matrix,
        "row": matrix[1],
        "transposed": matrix.T,
        "every second": matrix.reshape(-1)[::2],
        "empty": torch.empty(0),
        "also empty": torch.empty(0, 4),
        "number": torch.tensor(3),
    }
    values, found = tensor_file.from_bytes(tensor_file.to_bytes({"round": 3}, given))
    assert values == {"round": 3} and found.keys() == given.keys()
    for name, tensor in given.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def test_only_tensors_that_share_memory_are_copied() -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    alone = torch.ones(5)
    given = {"row": matrix[1], "other row": matrix[2], "alone": alone}
    found = tensor_file._alone(given)
    assert found["alone"].data_ptr() == alone.data_ptr()
    places = {own.untyped_storage().data_ptr() for own in found.values()}
    assert len(places) == 3 and matrix.data_ptr() not in places
