"""A step that is not finite changes nothing and leaves its batch; a spike names its responses."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import test_train_step
import tiny
from test_train_step import fake_run, make_batch

from cpgd_jax import guard, train
from cpgd_jax.algorithms import ALGORITHMS
from cpgd_jax.errors import UserError
from cpgd_jax.losses.policy import policy_loss
from cpgd_jax.ops import masked

SETTINGS = tiny.config().guard
ROWS = {"guard/log_ratio": np.zeros(8, np.float32), "guard/push": np.zeros(8, np.float32)}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("field", ["advantage_BT", "old_logp_BT"])
def test_no_algorithm_hides_a_nan(name, field):
    arrays = {k: np.array(getattr(make_batch(), k)) for k in ("advantage_BT", "old_logp_BT")}
    logp_BT = arrays["old_logp_BT"] + np.float32(0.5)
    arrays[field][2, 0] = np.nan
    loss, _ = policy_loss(
        name,
        logp_BT=logp_BT,
        old_logp_BT=arrays["old_logp_BT"],
        advantage_B=arrays["advantage_BT"],
        mask_BT=make_batch().mask_BT,
        group_B=make_batch().group_B,
        max_response_len=9,
    )
    assert np.isnan(loss)


def test_nothing_but_the_counters_moves():
    given, state = fake_run(optimizer=train.optim.make_optimizer(tiny.config().optim, 10))
    step = train.make_step(given, ALGORITHMS["cpgd"])
    state, _ = step(state, given.pack(make_batch()))
    before = jax.device_get(state)
    bad_BT = np.array(make_batch().advantage_BT)
    bad_BT[2, 0] = np.nan
    state, metrics = step(state, given.pack(make_batch().replace(advantage_BT=bad_BT)))
    assert masked.to_host(metrics)["guard/skipped"] == 1.0
    for x, y in zip(*map(jax.tree.leaves, (before, jax.device_get(state))), strict=True):
        if x.dtype == np.int32:
            assert y == x + 1
        else:
            np.testing.assert_array_equal(x, y)
    state, metrics = step(state, given.pack(make_batch()))
    assert masked.to_host(metrics)["guard/skipped"] == 0.0
    moved = jax.device_get(state)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(moved))
    pairs = zip(jax.tree.leaves(before.params), jax.tree.leaves(moved.params), strict=True)
    assert any((x != y).any() for x, y in pairs)


def test_numbers_of_single_responses():
    """The largest log-ratio by a NumPy twin; a larger advantage pushes its own response only."""
    given, state = fake_run(microbatch_size=4)
    batch = make_batch()
    logp_BT = test_train_step.logp_of_responses(given, state.params, batch)
    step = train.make_step(given, ALGORITHMS["cpgd"])
    _, metrics = step(state, given.pack(batch))
    found = guard._in_order(masked.rows(metrics), batch, 4)
    expected_B = np.where(batch.mask_BT, logp_BT - batch.old_logp_BT, -np.inf).max(axis=1)
    np.testing.assert_allclose(found["guard/log_ratio"], expected_B, atol=1e-4)
    push_B = found["guard/push"]
    twice = batch.replace(advantage_BT=np.where(np.arange(8)[:, None] == 3, 9, batch.advantage_BT))
    _, metrics = step(fake_run(microbatch_size=4)[1], given.pack(twice))
    more_B = guard._in_order(masked.rows(metrics), batch, 4)["guard/push"]
    np.testing.assert_allclose(np.delete(more_B, 3), np.delete(push_B, 3), rtol=1e-4)
    assert more_B[3] > 2 * push_B[3] > 0


def make_guard(folder, **changes):
    settings = dataclasses.replace(SETTINGS, **changes)
    return guard.Guard(folder, settings, lambda ids: " ".join(map(str, ids)), 8)


def row(step, skipped=0.0, grad_norm=1.0, ratio=1.0):
    return {
        "step": step, "guard/skipped": skipped, "grad_norm": grad_norm, "ratio/max": ratio,
    }  # fmt: skip


def test_a_skipped_batch_is_kept_and_many_in_a_row_stop(tmp_path):
    one = make_guard(tmp_path, max_skips=3, keep_batches=2)
    for step in (1, 2, 4, 5, 6):
        told = one.check(row(step, 1.0, np.nan), make_batch(seed=step), ROWS)
        if step < 6:
            one.stop_after_too_many(told)
        if step == 2:
            one.check(row(3), make_batch(), ROWS)  # a sound one between: counting starts again
    with pytest.raises(UserError, match=r"step 6: 3 updates in a row.*gradient norm nan.*lower"):
        one.stop_after_too_many(told)
    names = sorted(p.name for p in (tmp_path / "bad_batches").iterdir())
    assert names == ["step_1.json", "step_1.npz", "step_2.json", "step_2.npz"]
    with np.load(tmp_path / "bad_batches" / "step_2.npz", allow_pickle=False) as kept:
        np.testing.assert_array_equal(kept["response_BT"], make_batch(seed=2).response_BT)
    kept = json.loads((tmp_path / "bad_batches" / "step_2.json").read_text())
    assert kept["step"] == 2 and kept["grad_norm"] is None


def test_a_batch_that_cannot_be_kept_stops_nothing(tmp_path, capsys):
    (tmp_path / "bad_batches").write_text("a file")
    make_guard(tmp_path).check(row(1, 1.0), make_batch(), ROWS)
    assert "step_1.npz cannot be written" in capsys.readouterr().err


def test_spikes_name_the_responses_that_made_them(tmp_path):
    one = make_guard(tmp_path)
    for step in range(1, 12):
        assert one.check(row(step), make_batch(), ROWS)["guard/spikes"] == 0
    rows = {k: np.arange(8, dtype=np.float32) for k in ROWS}  # in the order of microbatches
    told = one.check(row(12, 0.0, 10.5, 21.0), make_batch(), rows)
    assert told["guard/spikes"] == 2
    norm, ratio = tiny.lines(tmp_path, "spikes.jsonl")
    assert (norm["metric"], norm["value"], norm["usual"]) == ("grad_norm", 10.5, 1.0)
    assert (ratio["metric"], ratio["value"]) == ("ratio/max", 21.0)
    order = np.concatenate(guard.packing.microbatches(make_batch(), 8))
    assert [r["row"] for r in norm["responses"]] == [int(order[i]) for i in (7, 6, 5, 4)]
    worst = norm["responses"][0]
    ids = make_batch().response_BT[worst["row"]][make_batch().mask_BT[worst["row"]]]
    assert worst["response"] == " ".join(map(str, ids)) and worst["push"] == 7.0


def test_what_is_usual_survives_a_resume(tmp_path):
    one = make_guard(tmp_path)
    for step in range(1, 11):
        one.check(row(step), make_batch(), ROWS)
    other = make_guard(tmp_path)
    other.state = json.loads(json.dumps(one.state))
    assert other.check(row(11, 0.0, 10.5), make_batch(), ROWS)["guard/spikes"] == 1
