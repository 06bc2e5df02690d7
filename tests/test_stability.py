"""The study's trials are the project's algorithm; its numbers, files and pictures."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cpgd_jax import optim
from cpgd_jax.algorithms import ALGORITHMS, resolve
from cpgd_jax.errors import UserError
from cpgd_jax.stability import (
    figures,
    plan,
    policy,
    results,
    runner,
    summary,
    tasks,
    trial,
    warmstart,
)
from cpgd_jax.stability.tasks import STOP, TASKS

SUMS = TASKS["sums"]
SMALL = trial.Pressure(rollouts=3, prompts=4, group=4, minibatch=8)


@pytest.fixture(scope="module")
def graphdef():
    return policy.graphdef()


@pytest.fixture(scope="module")
def start():
    """Two random policies."""
    return jax.vmap(policy.init)(jax.random.split(jax.random.key(5), 2))


def run(start, row="cpgd", lr=1e-2, pressure=SMALL, **cells):
    lr_N = jnp.full(2, lr)
    row = resolve(row, **cells)
    return jax.device_get(trial.run(row, pressure, SUMS, start, lr_N, jnp.arange(2)))


def test_what_is_sampled_is_scored_alike(graphdef, start):
    """One token at a time over the cache gives the log-probabilities of the whole sequence."""
    params = jax.tree.map(lambda x: x[0], start)
    prompt_QS = jax.random.randint(jax.random.key(0), (3, 4), 0, 18)
    uniform_TB2 = jax.random.uniform(jax.random.key(1), (9, 12, 2))
    sample = jax.jit(lambda params: policy.sample(graphdef, params, prompt_QS, uniform_TB2, 4))
    drawn = sample(params)
    token_BU = jnp.concatenate([jnp.repeat(prompt_QS, 4, axis=0), drawn.response_BT], axis=1)
    logp_BT = jax.jit(lambda params: policy.logprobs(graphdef, params, token_BU, 4))(params)
    np.testing.assert_allclose(jnp.where(drawn.mask_BT, logp_BT, 0), drawn.logp_BT, atol=2e-5)
    ids_BT, mask_BT = np.asarray(drawn.response_BT), np.asarray(drawn.mask_BT)
    for ids, mask in zip(ids_BT, mask_BT, strict=True):
        end = np.flatnonzero(ids == STOP)
        assert mask.sum() == (end[0] + 1 if len(end) else 9)
    assert (ids_BT == STOP).any() and len(np.unique(ids_BT[:4, 0])) > 1


def test_a_learning_rate_of_zero_moves_nothing(start):
    curves = run(start, lr=0.0)
    np.testing.assert_allclose(curves["ratio_max"], 1, atol=1e-4)
    assert not curves["clipped"].any() and (curves["grad_norm"] > 0).any()


def test_the_rate_as_data_is_the_optimisers_own():
    """Updates of AdamW are proportional to the rate, weight decay included."""
    params, grads = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([0.3, 0.1])}
    unit = optim.make_optimizer(trial.OPTIM, 2)
    own = optim.make_optimizer(dataclasses.replace(trial.OPTIM, lr=0.01, lr_end_frac=1.0), 2)
    ours, theirs = (o.update(grads, o.init(params), params)[0]["w"] for o in (unit, own))
    np.testing.assert_allclose(0.01 * ours, theirs, rtol=1e-6)


def test_trials_of_a_batch_do_not_touch_each_other(start):
    both, swapped = run(start), None
    order = jnp.array([1, 0])
    flipped = jax.tree.map(lambda x: x[order], start)
    swapped = jax.device_get(
        trial.run(resolve("cpgd"), SMALL, SUMS, flipped, jnp.full(2, 1e-2), order)
    )
    for name, curve in both.items():
        np.testing.assert_array_equal(curve, swapped[name][::-1], err_msg=name)


def test_a_stale_policy_samples(start):
    """With a lag the ratio is off 1 from the second rollout on even at one step a rollout."""
    one = dataclasses.replace(SMALL, minibatch=16)
    fresh, stale = (run(start, pressure=dataclasses.replace(one, lag=lag)) for lag in (0, 1))
    np.testing.assert_allclose(fresh["ratio_max"], 1, atol=1e-4)
    np.testing.assert_allclose(stale["ratio_max"][:, 0], 1, atol=1e-4)
    assert (stale["ratio_max"][:, 1:] > 1.01).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_trains(start, name, monkeypatch):
    def even(response_BT, mask_BT, gold_B):
        """Rewards that a random policy can get: for a first token of an even number."""
        even_B = (response_BT[:, 0] % 2 == 0).astype(jnp.float32)
        return even_B, even_B

    monkeypatch.setattr(tasks, "rewards", even)
    curves = run(start, name, pressure=dataclasses.replace(SMALL, prompts=6))
    assert all(np.isfinite(curve).all() for curve in curves.values())
    assert (curves["ratio_max"] > 1.01).all()


@pytest.mark.slow
@pytest.mark.parametrize(("label", "row", "cells", "pressure"), plan.ABLATIONS)
def test_every_ablation_trains(start, label, row, cells, pressure):
    curves = run(start, row, pressure=dataclasses.replace(SMALL, **pressure), **cells)
    assert all(np.isfinite(curve).all() for curve in curves.values())


def test_a_step_is_the_projects_loss_and_optimiser(graphdef, start):
    """One rollout of one step, put together by hand from what `_collect` hands over."""
    params = jax.tree.map(lambda x: x[0], start)
    one = dataclasses.replace(SMALL, minibatch=16)
    row, key = resolve("grpo"), jax.random.key(2)
    optimizer = optim.make_optimizer(trial.OPTIM, 2)

    @jax.jit
    def by_the_study(params):
        batch, _ = trial._collect(graphdef, row, one, SUMS, params, params, key)
        advantage_B1 = jax.random.normal(key, (16, 1))  # a random policy earns no reward
        batch = batch._replace(advantage_BT=jnp.broadcast_to(advantage_B1, batch.mask_BT.shape))
        after, _, found = trial._optimise(
            graphdef, row, one, SUMS, optimizer, 0.1, params, optimizer.init(params), batch, key
        )
        return batch, after, found["grad_norm"]

    @jax.jit
    def by_hand(params, batch):
        def surrogate(params):  # GRPO on-policy: sum of A r / |y| / B
            logp_BT = policy.logprobs(graphdef, params, batch.token_BU, 4)
            ratio_BT = jnp.where(batch.mask_BT, jnp.exp(logp_BT - batch.old_BT), 0.0)
            each_B = (ratio_BT * batch.advantage_BT).sum(axis=1) / batch.mask_BT.sum(axis=1)
            return -each_B.mean()

        grads = jax.grad(surrogate)(params)
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        moved = optax.apply_updates(params, jax.tree.map(lambda u: 0.1 * u, updates))
        return moved, optax.tree.norm(grads)

    batch, after, norm = by_the_study(params)
    expected, expected_norm = by_hand(params, batch)
    np.testing.assert_allclose(norm, expected_norm, rtol=1e-4)
    far = [
        np.abs(a - b) > 1e-3 for a, b in zip(*map(jax.tree.leaves, (after, expected)), strict=True)
    ]
    assert np.concatenate([x.reshape(-1) for x in far]).mean() < 0.01  # Adam: lr * sign of noise


# ---- plan, files, numbers


def test_the_full_study_is_what_it_says():
    found = plan.batches(plan.FULL)
    main = [b for b in found if b.part == "main"]
    assert len(main) == 2 * 13 and all(len(b.rates) >= 4 and len(b.seeds) >= 5 for b in main)
    assert {b.row.name for b in main} == set(ALGORITHMS)
    assert len({b.name for b in found}) == len(found)
    assert all(b.pressure.minibatches >= 8 and b.pressure.lag == 0 for b in main)
    for batch in found:  # every part is comparable at the common rate
        assert plan.FULL.common_rate(batch.task) in batch.rates


def test_files_name_what_they_hold():
    batch = plan.batches(plan.FAST)[0]
    harder = dataclasses.replace(batch, pressure=trial.Pressure(epochs=2))
    assert batch.name != harder.name and batch.name == plan.batches(plan.FAST)[0].name


def small_batch(name="cpgd", part="main", label=None):
    return plan.Batch(part, label or name, ALGORITHMS[name], SMALL, "sums", (1e-3, 1e-2), (0, 1))


def test_a_batch_is_computed_once_and_alike(tmp_path, monkeypatch, start):
    batch = small_batch()
    folder = tmp_path / "batches"
    folder.mkdir()
    warmstart.save(warmstart.file_of(folder, SUMS, batch.seeds), start)
    loaded = warmstart.load(warmstart.file_of(folder, SUMS, batch.seeds))
    assert jax.tree.structure(loaded) == jax.tree.structure(start)
    runner._compute((folder, batch))
    first = runner.file_of(folder, batch).read_text()
    runner._compute((folder, batch))
    again = json.loads(runner.file_of(folder, batch).read_text())
    assert again["curves"] == json.loads(first)["curves"]
    assert np.shape(again["curves"]["accuracy"]) == (2, 2, 3)
    told = []
    monkeypatch.setattr(runner, "_compute", None)  # not called again
    runner.run([batch], tmp_path, 1, told.append)
    assert told == ["1 batches, 1 done before"]


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([0.5] * 20, False),
        ([0.5] * 10 + [0.9] * 8 + [0.4] * 2, True),  # below half of what it had reached
        ([0.5] * 10 + [0.9] * 8 + [0.5] * 2, False),
        ([0.6] * 2 + [0.2] * 18, True),  # the start counts too
        ([0.1] + [0.9] + [0.1] * 18, True),
        ([0.0] * 20, False),  # never learnt: nothing to lose
        ([0.9] * 18 + [float("nan")] * 2, True),
    ],
)
def test_what_has_collapsed(curve, expected):
    assert bool(summary.collapsed(curve)) is expected


def test_intervals_by_hand():
    """Mean .5, std .2582, t(3) 3.182: .5 ± .411. Wilson of 1 in 5: .2 → (.036, .624)."""
    np.testing.assert_allclose(summary.interval([0.2, 0.4, 0.6, 0.8]), (0.0892, 0.9108), atol=1e-3)
    assert summary.interval([0.3, 0.3]) == (0.3, 0.3) and summary.interval([0.3]) == (0.3, 0.3)
    one_in_five = summary.share_interval([True, False, False, False, False])
    np.testing.assert_allclose(one_in_five, (0.0362, 0.6245), atol=1e-3)


def made_up(accuracy, clipped=0.01):
    """Curves of two rates, two seeds and 20 rollouts: the first rate learns, the second as told."""
    curve = np.linspace(0.5, 0.9, 20)
    tell = np.array([[curve, curve], [accuracy, accuracy]])
    flat = np.ones_like(tell)
    return {
        "accuracy": tell.tolist(),
        "format": flat.tolist(),
        "length": (12 * flat).tolist(),
        "clipped": (clipped * flat).tolist(),
        "ratio_max": (3 * flat).tolist(),
        "grad_norm_max": np.where(tell > 0.1, flat, np.nan).tolist(),
        "entropy": flat.tolist(),
    }


LOST = np.r_[np.full(10, 0.8), np.full(10, 0.05)]


def study():
    pairs = [(small_batch("cpgd"), made_up(np.full(20, 0.7)))]
    pairs += [(small_batch(name), made_up(LOST)) for name in ("grpo", "pg")]
    pairs += [(small_batch("cpgd", "ablation", "α 1"), made_up(LOST))]
    return pairs, dataclasses.replace(plan.FAST, rates={"sums": (1e-2, 1e-1)})


def test_rows_and_phenomena():
    pairs, scale = study()
    made = summary.rows(pairs, scale)
    grpo = made[1]
    assert grpo["best_rate"] == 1e-3 and grpo["common"]["collapsed"] == 1.0
    np.testing.assert_allclose(grpo["common"]["accuracy"], 0.05)
    told = {(c["label"], c["claim"]): c for c in summary.phenomena(made, "sums")}
    verdicts = {key: claim["verdict"] for key, claim in told.items()}
    assert verdicts["grpo", "collapses"] == verdicts["cpgd", "stays stable"] == "reproduced"
    assert verdicts["pg", "stays stable"] == "partly"  # at the rate that is not the common one
    assert verdicts["pg", "loses response length"] == "not"
    assert verdicts["cpgd", "clips about 1% of tokens"] == "reproduced"
    assert ("rloo", "collapses") not in told
    assert told["grpo", "collapses"]["values"] == [0.0, 1.0]


def test_a_difference_is_of_the_same_seeds():
    """Seeds .2 and .6 against .1 and .5: .1 without spread, though each row spreads by .4."""
    cells = [{"accuracy_of": of, "collapsed": 0.0} for of in ([0.2, 0.6], [0.1, 0.5])]
    made = [
        {"part": "main", "task": "sums", "label": label, "best": cell, "common": None}
        for label, cell in zip(("cpgd", "pg"), cells, strict=True)
    ]
    (row,) = summary.against(made, "sums")
    np.testing.assert_allclose([row["best"]["difference"], *row["best"]["interval"]], 0.1)
    assert row["label"] == "pg" and row["common"] is None


def test_ablations_begin_with_the_components_at_the_common_rate():
    pairs, scale = study()
    made = summary.rows(pairs, scale)
    rows = summary.of_part(made, "sums", "ablation")
    assert [row["label"] for row in rows] == ["pg", "α 1"] and rows[0]["rates"] == [1e-2]
    assert summary.of_part(made, "chain", "ablation") == []


@pytest.mark.slow
def test_results_are_written_and_stand_alone(tmp_path, monkeypatch):
    pairs, scale = study()
    monkeypatch.setattr(runner, "read", lambda *_: pairs)
    monkeypatch.setattr(runner, "cpu_minutes", lambda *_: 1.0)
    value = results.write([b for b, _ in pairs], scale, tmp_path)
    assert json.loads((tmp_path / "study.json").read_text()) == json.loads(json.dumps(value))
    page = (tmp_path / "study.html").read_text()
    drawn = ("figure1", "figure1_best", "dynamics", "accuracy", "map_main", "ablations")
    assert page.count("data:image/png;base64,") == len(drawn) and "http:" not in page
    assert {p.name for p in tmp_path.glob("*.png")} == {f"{name}_sums.png" for name in drawn}
    text = (tmp_path / "study.md").read_text()
    assert "| GRPO collapses | reproduced | 0.01 | seeds collapsed | 0% [0, 66] |" in text
    assert text.count("| CPGD |") == 1 and "| GRPO | +0.0 [+0.0, +0.0] | 0%, 0% |" in text


def test_nothing_run_yet_is_said(tmp_path):
    with pytest.raises(UserError, match="holds no batch"):
        results.write(plan.batches(plan.FAST), plan.FAST, tmp_path)


def test_every_algorithm_has_a_name_and_a_curve():
    drawn = {name for _, names in figures.FAMILIES for name in names}
    assert drawn == set(ALGORITHMS) <= set(figures.NAMES)
    assert (
        max(len(names) for _, names in figures.FAMILIES) <= len(figures.INKS) + 1
    )  # CPGD's is black
