"""The emulated device refuses, counts and computes what a CUDA device does."""

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda


def test_rough():
    with emulated_cuda() as device:
        x = torch.ones(3, device="cuda")
        assert x.is_cuda and x.device == torch.device("cuda:0")
        y = torch.arange(3.0).to("cuda")
        assert device.counts.launches == 1 and device.counts.syncs == 1
        z = (x + y).sum()
        assert device.counts.launches == 3
        assert float(z) == 6
        with pytest.raises(RuntimeError, match="same device"):
            x + torch.ones(3)
        with pytest.raises(TypeError):
            x.numpy()
        with pytest.raises(TypeError):
            np.asarray(x)
        w = torch.ones(3, device="cuda", requires_grad=True)
        (g,) = torch.autograd.grad((w * x).sum(), [w])
        assert g.is_cuda

        fixed = torch.ones(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = fixed * 2
            fixed += 1
        assert out.isnan().all()
        assert fixed.tolist() == [1, 1, 1]
        graph.replay()
        assert out.tolist() == [2, 2, 2]
        graph.replay()
        assert out.tolist() == [4, 4, 4]
        assert fixed.cpu().tolist() == [3, 3, 3]
    assert not torch.cuda.is_available()
    assert not torch.ones(3).is_cuda
