"""A batch goes through JSON and comes back as it was; nothing else comes out of it."""

import base64
import io
import json

import numpy as np
import pytest

from cpgd_jax import types, work
from cpgd_jax.types import TrainBatch


def make_work():
    rng = np.random.default_rng(0)
    floats = rng.normal(size=(3, 4)).astype(np.float32)
    floats[0, 0] = np.nan
    batch = TrainBatch(
        prompt_BS=rng.integers(0, 9, (3, 2)).astype(np.int32),
        prompt_mask_BS=np.ones((3, 2), bool),
        response_BT=rng.integers(0, 9, (3, 4)).astype(np.int32),
        mask_BT=rng.random((3, 4)) < 0.5,
        old_logp_BT=floats,
        advantage_BT=floats,
        group_B=np.arange(3, dtype=np.int32),
    )
    return work.Work(batch, {"reward/mean": 0.1}, [{"response": "\ud800"}], 7)


def through(value):
    return work.decode(json.loads(json.dumps(work.encode(value))))


def test_it_comes_back_bit_for_bit():
    made = make_work()
    again = through(made)
    assert again[1:] == made[1:] and again.batch.ref_logp_BT is None
    for name, x in vars(made.batch).items():
        if x is not None:
            y = getattr(again.batch, name)
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
    assert work.decode(work.encode(None)) is None


def test_records_and_lists_of_them_within_a_batch():
    patches = types.ImagePatches(np.ones((4, 2), np.float32), (1, 2, 2))
    made = make_work()
    seen = (None, (patches, patches), ())
    again = through(made._replace(batch=made.batch.replace(ref_logp_BT=seen))).batch.ref_logp_BT
    assert again[0] is None and again[2] == () and again[1][0].grid == (1, 2, 2)
    assert isinstance(again[1][1], types.ImagePatches)
    np.testing.assert_array_equal(again[1][1].patch_XC, patches.patch_XC)


def test_an_array_that_is_shared_is_stored_once():
    made = make_work()
    arrays = work.encode(made)["batch"]["arrays"]
    with np.load(io.BytesIO(base64.b64decode(arrays))) as file:
        assert len(file) == 6  # old_logp_BT and advantage_BT are one


def test_only_plain_arrays_and_our_records_are_read():
    stream = io.BytesIO()
    np.savez(stream, **{"0": np.array([print], dtype=object)})
    hostile = base64.b64encode(stream.getvalue()).decode()
    value = work.encode(make_work())
    with pytest.raises(ValueError, match="allow_pickle"):
        work.decode(value | {"batch": value["batch"] | {"arrays": hostile}})
    for name in ("Popen", "Any", "np", "__builtins__"):
        with pytest.raises(ValueError, match="no record"):
            work.decode(value | {"batch": value["batch"] | {"shape": {"record": name}}})
