"""Arrays that go to a device together are the arrays, and one copy of pinned memory takes them there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from benchmarks.device_proxy import Proxy
from outlines_cont.device import upload_together
from tests.examples import examples

_SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)
_ARRAYS = st.sampled_from([np.bool_, np.int64, np.int32, np.float32, np.uint8]).flatmap(lambda kind: arrays(kind, _SHAPES))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(_ARRAYS, min_size=1, max_size=4))
def test_arrays_that_go_together_are_the_arrays(given_arrays: list[NDArray[np.float32]]) -> None:
    on_host = upload_together(given_arrays, torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode(), Proxy() as proxy:
        pinned: list[int] = []
        pin = proxy.pin
        patch.setattr(proxy, "pin", lambda tensor: pinned.append(tensor.nbytes) or pin(tensor))  # type: ignore[func-returns-value]
        moved = upload_together(given_arrays, torch.device("cuda:0"))
        assert len(pinned) == 1
        assert all(map(proxy.holds, moved))
        assert (proxy.steps[-1].uploads, proxy.steps[-1].outside) == (0, 0), "no copy for which the host waits, no operator"
        found = [tensor.cpu() for tensor in moved]
    for array, here, there in zip(given_arrays, on_host, found, strict=True):
        wanted = torch.from_numpy(array)
        for one in (here, there):
            assert one.dtype == wanted.dtype
            torch.testing.assert_close(one, wanted, rtol=0, atol=0, equal_nan=True)
