"""One rollout on its way to the train step: rows, labels, masks, refills, minibatches, epochs."""

import json
from concurrent.futures import Future

import jax
import numpy as np
import pytest
import tiny

from cpgd_jax import experience, run, train
from cpgd_jax.errors import UserError
from cpgd_jax.rewards import rules
from cpgd_jax.rollout import engine

pytestmark = pytest.mark.usefixtures("one_device")
G, T = 4, 8


class Scores:
    """Stands for the verifier: `total(text, gold)` decides; remembers what it was asked."""

    timeouts = errors = 0

    def __init__(self, total):
        self.total, self.asked = total, []

    def submit(self, *args, **weights):
        done = Future()
        done.set_result(self.score_batch(*args, **weights))
        return done

    def score_batch(self, texts, golds, **weights):
        self.asked.append((texts, golds, weights))
        return [
            rules.Score(0, 0, self.total(text, gold), "", "", 0.0, False)
            for text, gold in zip(texts, golds, strict=True)
        ]


def by_digits(text, gold):
    return sum(c.isdigit() for c in text) / T


def length(text, gold):
    return float(len(text))


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A run and its first state, shared: nothing below changes them."""
    patch = pytest.MonkeyPatch()
    tiny.use_one_device(patch)
    built = run.build(tiny.config(), tmp_path_factory.mktemp("run"))
    patch.undo()
    return built


def collect(parts, verifier=None, index=0, position=0, reference=None, **changes):
    """(batch, metrics, samples, position, row) of one rollout under a changed config."""
    given, state = parts
    config = tiny.config(**changes)
    given = run.dataclasses.replace(given, config=config)
    row, _ = train.algorithm_row(config)
    verifier = verifier or Scores(by_digits)
    out = experience.collect(given, row, state.params, reference, verifier, index, position)
    return (*out, row)


@pytest.fixture(scope="module")
def plain(parts):
    verifier = Scores(by_digits)
    return *collect(parts, verifier), verifier


def test_rows_of_a_group_are_consecutive_and_their_labels_aligned(parts, plain):
    batch, _, _, position, *_, row, verifier = plain
    given = parts[0]
    assert position == 4
    assert batch.group_B.tolist() == np.repeat(np.arange(4), G).tolist()
    examples = [given.source.train(i) for i in range(4)]
    for b in range(16):
        ids = batch.prompt_BS[b][batch.prompt_mask_BS[b]]
        assert ids.tolist() == given.tokenizer.encode_prompt(examples[b // G].prompt)
    ((texts, golds, _),) = verifier.asked
    assert golds == [e.gold for e in examples for _ in range(G)]
    for b, text in enumerate(texts):
        assert text == given.tokenizer.decode(batch.response_BT[b][batch.mask_BT[b]])
    reward_QG = np.array([by_digits(t, "") for t in texts]).reshape(4, G)
    std_Q1 = reward_QG.std(axis=1, ddof=1, keepdims=True)
    expected = (reward_QG - reward_QG.mean(axis=1, keepdims=True)) / np.where(std_Q1, std_Q1, 1)
    np.testing.assert_allclose(batch.advantage_BT[:, 0], expected.reshape(-1), atol=1e-5)
    assert (batch.advantage_BT == batch.advantage_BT[:, :1]).all()


def test_samples_differ_and_so_do_rollouts_and_a_rerun_repeats(parts, plain):
    batch = plain[0]
    assert len({tuple(r) for r in batch.response_BT.tolist()}) > 12
    again = collect(parts)[0]
    np.testing.assert_array_equal(again.response_BT, batch.response_BT)
    np.testing.assert_array_equal(again.old_logp_BT, batch.old_logp_BT)
    other = collect(parts, index=1)[0]  # the same prompts
    np.testing.assert_array_equal(other.prompt_BS, batch.prompt_BS)
    assert (other.response_BT != batch.response_BT).any(axis=1).sum() > 12


def test_the_sampler_agrees_with_the_trainer(plain):
    metrics = plain[1]
    assert 0 < metrics["rollout/logp_gap_max"] < 1e-4
    assert metrics["rollout/logp_gap_mean"] <= metrics["rollout/logp_gap_max"]


def test_reward_weights_reach_the_verifier(parts):
    verifier = Scores(by_digits)
    collect(parts, verifier, reward__accuracy_weight=2.0, reward__format_weight=0.25)
    assert verifier.asked[0][2] == {
        "accuracy_weight": 2.0,
        "format_weight": 0.25,
        "repetition_penalty": 0.0,
    }


def test_the_length_penalty_counts_tokens(parts):
    batch, metrics, *_ = collect(parts, Scores(lambda *_: 0.0), reward__length_penalty=0.5)
    assert metrics["reward/mean"] == pytest.approx(-0.5 * batch.mask_BT.sum(axis=1).mean() / T)


def test_counts_and_parts_of_the_verifier_are_metrics(parts):
    verifier = Scores(by_digits)

    def score_batch(texts, golds, **weights):
        verifier.timeouts, verifier.errors = 1, 2
        return [rules.Score(0, 0, 0.0, "", "", 0.0, extra={"mine": 0.25}) for _ in texts]

    verifier.score_batch = score_batch
    metrics = collect(parts, verifier)[1]
    assert (metrics["reward/timeouts"], metrics["reward/errors"]) == (1, 2)
    assert metrics["reward/mine"] == 0.25 and metrics["time/reward_wait_s"] >= 0


def test_truncated_responses_leave_the_loss_when_asked(parts, plain):
    batch = collect(parts, advantage__mask_truncated=True)[0]
    stops = np.array(parts[0].tokenizer.stop_ids)
    whole_BT = plain[0].mask_BT
    ended_B = np.isin(np.where(whole_BT, batch.response_BT, -1), stops).any(axis=1)
    assert 0 < ended_B.sum() < 16
    np.testing.assert_array_equal(batch.mask_BT, whole_BT & ended_B[:, None])
    assert (whole_BT.sum(axis=1)[~ended_B] == T).all()


def test_the_overlong_penalty_counts_tokens(parts):
    """DAPO: of 8 tokens the last fifth, one token, is the buffer."""
    batch, *_ = collect(parts, Scores(lambda *_: 0.0), algorithm="dapo", rollout__max_refills=0)
    length_B = collect(parts)[0].mask_BT.sum(axis=1)
    full_QG = (length_B == T).reshape(4, G)
    signal_Q = full_QG.any(axis=1) & ~full_QG.all(axis=1)
    assert signal_Q.any()
    lower_QG = batch.advantage_BT[:, 0].reshape(-1, G) < 0
    groups = lower_QG[np.abs(batch.advantage_BT[:, 0]).reshape(-1, G).sum(axis=1) > 0]
    assert sorted(map(tuple, groups)) == sorted(map(tuple, full_QG[signal_Q]))
    buffered = collect(parts, Scores(lambda *_: 0.0), reward__overlong_buffer=8)
    assert len(np.unique(buffered[0].advantage_BT)) > 4  # every token counts now
    assert buffered[1]["reward/mean"] == pytest.approx(-length_B.mean() / 8)


def test_dynamic_sampling_fills_up_with_groups_that_have_a_signal(parts):
    """Odd golds pay all alike; even golds pay by the text."""

    def total(text, gold):
        return 1.0 if int(gold) % 2 else by_digits(text, gold)

    verifier, changes = Scores(total), dict(algorithm="dapo", reward__overlong_buffer=0)
    batch, metrics, samples, position, *_ = collect(parts, verifier, **changes)
    rounds = len(verifier.asked)
    assert 1 < rounds <= 4 and position == 4 * rounds
    assert batch.response_BT.shape == (16, T)
    assert metrics["group/zero_std_frac"] == 0.0
    assert batch.mask_BT.any(axis=1).all()
    assert all(int(s["gold"]) % 2 == 0 for s in samples)
    again = collect(parts, Scores(total), **changes)[0]
    np.testing.assert_array_equal(again.response_BT, batch.response_BT)


def test_dynamic_sampling_is_bounded_and_says_when_it_gives_up(parts, capsys):
    verifier = Scores(lambda *_: 1.0)
    changes = dict(rollout__max_refills=2, reward__overlong_buffer=0)
    batch, metrics, _, position, *_ = collect(parts, verifier, algorithm="dapo", **changes)
    assert len(verifier.asked) == 3 and position == 12
    assert "2 refills gave 0 of 4 groups with a signal" in capsys.readouterr().err
    assert not batch.mask_BT.any()  # filtered groups leave the loss
    assert not batch.advantage_BT.any()
    assert metrics["group/zero_std_frac"] == 1.0


def test_a_reward_that_is_nan_is_contained(parts):
    rewards = iter([float("nan"), *np.linspace(0, 1, 15)])
    batch, metrics, *_ = collect(parts, Scores(lambda *_: next(rewards)))
    assert np.isfinite(batch.advantage_BT).all() and (batch.advantage_BT[0] == 0).all()
    assert metrics["reward/nan"] == 1 and np.isfinite(metrics["reward/mean"])


@pytest.mark.parametrize("epoch", [0, 1])
def test_minibatches_are_whole_groups_and_cover_everything_once(parts, plain, epoch):
    batch = plain[0]
    config = tiny.config(train__minibatch_size=8)
    seen = []
    for k in range(2 * epoch, 2 * epoch + 2):
        part = experience.minibatch(config, batch, 0, k)
        assert part.mask_BT.shape == (8, T) and part.ref_logp_BT is None
        for start in (0, 4):
            rows = part.group_B[start : start + 4]
            assert len(set(rows.tolist())) == 1
            np.testing.assert_array_equal(
                part.response_BT[start : start + 4], batch.response_BT[batch.group_B == rows[0]]
            )
            seen.append(int(rows[0]))
    assert sorted(seen) == [0, 1, 2, 3]


def test_the_order_of_minibatches_changes(plain):
    def order(index, epoch):
        config, steps = tiny.config(), range(2 * epoch, 2 * epoch + 2)
        parts = [experience.minibatch(config, plain[0], index, k) for k in steps]
        return tuple(int(g) for part in parts for g in part.group_B[::4])

    assert order(3, 0) == order(3, 0)
    assert len({order(index, epoch) for index in range(4) for epoch in range(2)}) > 4


def test_samples_speak_of_their_own_rows(plain):
    batch, _, samples, *_, verifier = plain
    texts = verifier.asked[0][0]
    assert [s["response"] for s in samples] == [texts[b] for b in (0, 4, 8, 12)]
    for sample, b in zip(samples, (0, 4, 8, 12), strict=True):
        assert sample["advantage"] == pytest.approx(float(batch.advantage_BT[b, 0]))
        assert sample["reward"] == by_digits(sample["response"], "")
    json.dumps(samples)


# ---- a reference, and more than one epoch


@pytest.fixture(scope="module")
def reference(parts):
    """A reference that differs from the policy."""
    return jax.tree.map(lambda x: x * 1.1, parts[1].params)


def test_a_reference_in_the_loss(parts, reference):
    changes = dict(algorithm="grpo", loss__kl_coef=0.1)
    batch, *_ = collect(parts, reference=reference, **changes)
    gap_BT = batch.ref_logp_BT - batch.old_logp_BT
    assert np.abs(gap_BT[batch.mask_BT]).min() > 0 and (gap_BT[~batch.mask_BT] == 0).all()


def test_a_reference_in_the_reward(parts, plain, reference):
    """Of a group baseline: R - beta * sum of k1, one number a response."""
    changes = dict(algorithm="rloo", loss__kl_coef=0.5, loss__kl_in="reward")
    changes |= dict(loss__kl_estimator="k1", advantage__global_norm=False)
    batch, *_ = collect(parts, Scores(lambda *_: 0.0), reference=reference, **changes)
    assert batch.ref_logp_BT is None
    given = run.dataclasses.replace(parts[0], config=tiny.config())
    ref_BT = experience.rescore(given, reference, plain[0])
    k1_QG = (plain[0].old_logp_BT - ref_BT).sum(axis=1).reshape(-1, G)
    penalised = -0.5 * k1_QG
    expected = (penalised - penalised.mean(axis=1, keepdims=True)) * G / (G - 1)
    first = np.array(
        [row[mask][0] for row, mask in zip(batch.advantage_BT, batch.mask_BT, strict=True)]
    )
    np.testing.assert_allclose(first, expected.reshape(-1), atol=1e-4)


def test_k1_as_a_loss_is_refused(parts):
    with pytest.raises(UserError, match="'k1' as a loss"):
        collect(parts, algorithm="grpo", loss__kl_coef=0.1, loss__kl_estimator="k1")


@pytest.mark.parametrize(
    "changes",
    [
        dict(algorithm="grpo", loss__kl_coef=0.1),
        dict(algorithm="reinforce_pp", loss__kl_coef=0.1),
        dict(algorithm="cpgd", train__epochs=2),
        dict(algorithm="cpgd", loss__sampler_is_cap=2.0, loss__entropy_coef=0.01),
    ],
    ids=["kl_in_loss", "kl_in_reward", "two_epochs", "sampler_weight_and_entropy"],
)
def test_variants_train(changes, tmp_path, monkeypatch):
    config = tiny.config(num_rollouts=1, **changes)
    weights = []
    rescore = experience.rescore

    def kept(*args):
        weights.append(rescore(*args))
        return weights[-1]

    monkeypatch.setattr(experience, "rescore", kept)
    monkeypatch.setattr(train.Verifier, "score_batch", Scores(by_digits).score_batch)
    summary = train.train(config, str(tmp_path))
    epochs = changes.get("train__epochs", 1)
    assert summary["steps"] == 2 * epochs and len(weights) == epochs - 1
    steps = [row for row in tiny.lines(tmp_path) if "kind" not in row]
    assert all(v is not None for row in steps for v in row.values())
    assert steps[0]["ratio/max"] == pytest.approx(1.0, abs=1e-4)
    assert steps[1]["ratio/max"] > 1.0005
    if "loss__kl_coef" in changes and changes["algorithm"] == "grpo":
        assert abs(steps[0]["loss/kl_ref"]) < 1e-6 < steps[1]["loss/kl_ref"]


def test_the_truncated_weight_of_a_second_epoch(parts, plain):
    """Section 6.1: the advantage is multiplied by clip(pi_end_of_epoch / pi_old)."""
    given, state = parts
    moved = jax.tree.map(lambda x: x * 1.2, state.params)
    batch = plain[0]
    epoch_BT = experience.rescore(given, moved, batch)
    assert np.abs((epoch_BT - batch.old_logp_BT)[batch.mask_BT]).max() > 0.01
    steps = train.make_step(given, plain[-2])
    rows = jax.tree.map(lambda x: x[:4], batch.replace(epoch_logp_BT=epoch_BT))

    def loss(rows):
        fresh = jax.tree.map(lambda x: x.copy(), state)
        return float(steps(fresh, given.pack(rows))[1]["loss/policy"].value)

    ratio_BT = np.exp(epoch_BT - batch.old_logp_BT)[:4].clip(0.8, 1.2)
    by_hand = rows.replace(epoch_logp_BT=None, advantage_BT=rows.advantage_BT * ratio_BT)
    shift = np.float32(0.05)  # off-policy, so that the loss is not 0
    rows, by_hand = (r.replace(old_logp_BT=r.old_logp_BT - shift) for r in (rows, by_hand))
    weighted = rows.replace(epoch_logp_BT=rows.epoch_logp_BT - shift)
    assert loss(weighted) == pytest.approx(loss(by_hand), rel=1e-4)
    assert loss(weighted) != pytest.approx(loss(rows.replace(epoch_logp_BT=None)), rel=1e-4)


def test_sampling_is_called_with_the_configured_law(parts, monkeypatch):
    seen = {}
    sample = engine.sample
    monkeypatch.setattr(engine, "sample", lambda *a, **k: seen.update(k) or sample(*a, **k))
    collect(parts, index=5, position=8, rollout__temperature=0.5)
    assert seen["temperature"] == 0.5 and seen["key"] == (0, 5)
    assert seen["prompt_id_Q"].tolist() == [8, 9, 10, 11]
    assert seen["stop_ids"] == parts[0].tokenizer.stop_ids


def test_golds_that_are_no_values_are_told_when_a_run_starts(tmp_path, capsys):
    def write(name, golds):
        rows = [json.dumps({"question": f"{name}{n}", "answer": g}) for n, g in enumerate(golds)]
        (tmp_path / name).write_text("\n".join(rows))
        return str(tmp_path / name)

    files = dict(data__path=write("1", ["5", "seven", ""]), data__held_out_path=write("2", ["5"]))
    run.build(tiny.config(data__source="jsonl", **files), tmp_path / "run")
    said = capsys.readouterr().err
    assert "data.path: of 3 golds 1 compared as text ('seven') and 1 empty, never paid ('')" in said
    assert "held_out_path" not in said
