"""A rollout made ready for training: rewards -> advantages, `old` log-probs, minibatches."""

import time

import jax
import numpy as np

from cpgd_jax import distributed, groups
from cpgd_jax.advantages import advantages, group_metrics, group_stats
from cpgd_jax.algorithms import Algorithm
from cpgd_jax.config import Config
from cpgd_jax.ops import masked
from cpgd_jax.rollout.scoring import score_rollout
from cpgd_jax.run import Run
from cpgd_jax.types import TrainBatch
from cpgd_jax.work import Work


def collect(run: Run, row: Algorithm, params, reference, verifier, index: int, position: int):
    """The `Work` of a whole rollout."""
    config = run.config
    started, timeouts, errors = time.monotonic(), verifier.timeouts, verifier.errors
    drawn, sampled_tokens, position = groups.draw(run, row, params, verifier, index, position)
    sample_s = time.monotonic() - started
    G, rollout = config.rollout.samples_per_prompt, drawn.rollout
    B, T = rollout.response_BT.shape
    rows = {
        "prompt_BS": np.repeat(drawn.prompts.token_QS, G, axis=0),
        "prompt_mask_BS": np.repeat(drawn.prompts.mask_QS, G, axis=0),
        "response_BT": rollout.response_BT,
    }
    seen = drawn.prompts.seen
    old_BT, found = _old_logp(run, params, rows, rollout, seen)
    ref_BT = None if reference is None else _score(run, reference, rows, rollout.mask_BT, seen)
    started = time.monotonic()
    scored = groups.rewarded(config, row, drawn)
    wait_s = time.monotonic() - started
    trained_BT = _trained(row, scored)
    in_reward = row.kl_coef > 0 and row.kl_in == "reward"
    advantage = advantages(
        row,
        scored.reward_QG,
        trained_BT.sum(axis=1).reshape(-1, G),
        log_ratio_to_ref_QGT=(old_BT - ref_BT).reshape(-1, G, T) if in_reward else None,
        mask_QGT=trained_BT.reshape(-1, G, T) if in_reward else None,
    )
    advantage_BT = np.broadcast_to(np.asarray(advantage).reshape(B, -1), (B, T))
    batch = TrainBatch(
        **rows,
        mask_BT=trained_BT,
        old_logp_BT=old_BT,
        advantage_BT=advantage_BT.astype(np.float32),
        group_B=np.repeat(np.arange(B // G, dtype=np.int32), G),
        ref_logp_BT=ref_BT if row.kl_coef > 0 and row.kl_in == "loss" else None,
        sampler_logp_BT=rollout.sampler_logp_BT if row.sampler_is_cap > 0 else None,
    )
    failed = distributed.gather([verifier.timeouts - timeouts, verifier.errors - errors])
    timeouts, errors = map(sum, zip(*failed, strict=True))
    metrics = _metrics(scored) | {
        **found,
        "reward/timeouts": timeouts,
        "reward/errors": errors,
        "time/reward_wait_s": wait_s,
        "rollout/tokens_per_s": sampled_tokens / sample_s,
    }
    work = Work(batch, metrics, _samples(run, scored, advantage_BT), position)
    if not any(seen):
        return work
    return work._replace(examples=scored.prompts.examples, seen=seen)


def look_again(run: Run, params, work: Work) -> Work:
    """A `Work` out of a checkpoint, with what its prompts show."""
    if work.seen or not work.examples:
        return work
    return work._replace(seen=groups.read_prompts(run, params, work.examples).seen)


def rescore(run: Run, params, batch: TrainBatch, seen=()):
    """ln-probabilities [B, T] of the batch's responses under `params`: the end of an epoch."""
    rows = {k: getattr(batch, k) for k in ("prompt_BS", "prompt_mask_BS", "response_BT")}
    return _score(run, params, rows, batch.mask_BT, seen)


def minibatch(config: Config, batch: TrainBatch, index: int, k: int) -> TrainBatch:
    """Whole groups, for step k of the rollout `index`; their order is of (seed, rollout, epoch)."""
    G, (epoch, part) = config.rollout.samples_per_prompt, divmod(k, config.minibatches)
    order = np.random.default_rng([config.seed, index, epoch]).permutation(config.rollout.prompts)
    groups_q = np.split(order, config.minibatches)[part]
    rows = (groups_q[:, None] * G + np.arange(G)).reshape(-1)
    return jax.tree.map(lambda x: np.ascontiguousarray(x[rows]), batch)


def _trained(row: Algorithm, scored: groups.Scored) -> np.ndarray:
    """mask_BT less what the row leaves out: truncated responses, groups that were filtered."""
    keep_B = np.ones(len(scored.texts), bool)
    if row.mask_truncated:
        keep_B &= ~scored.rollout.truncated_B
    if row.dynamic_sampling:
        signal_Q = np.asarray(group_stats(scored.reward_QG).signal_Q1)[:, 0]
        keep_B &= np.repeat(signal_Q, scored.reward_QG.shape[1])
    return scored.rollout.mask_BT & keep_B[:, None]


def _old_logp(run: Run, params, rows: dict, rollout, seen):
    """(old_BT, metrics): the trainer's own, or the sampler's where that is asked for and close.

    How close is measured on one microbatch, or a group if that is more.
    """
    t, G = run.config.train, run.config.rollout.samples_per_prompt
    if t.old_logp == "sampler":
        count = max(t.microbatch_size // G, 1) * G
        first = {name: x[:count] for name, x in rows.items()}
        gap = _gap(rollout, _score(run, params, first, rollout.mask_BT[:count], seen))
        if gap["rollout/logp_gap_max"] <= t.max_logp_gap:
            old_BT = np.where(rollout.mask_BT, rollout.sampler_logp_BT, 0.0)
            return old_BT, gap | {"old/rescored": 0.0}
    old_BT = _score(run, params, rows, rollout.mask_BT, seen)
    return old_BT, _gap(rollout, old_BT) | {"old/rescored": 1.0}


def _gap(rollout, scored_bT) -> dict:
    """Between sampler and trainer, on the responses that were scored: the first b."""
    mask_bT, sampler_bT = (x[: len(scored_bT)] for x in (rollout.mask_BT, rollout.sampler_logp_BT))
    gap_bT = np.abs(np.where(mask_bT, sampler_bT - scored_bT, 0.0))
    return {
        "rollout/logp_gap_mean": float(gap_bT.sum() / max(mask_bT.sum(), 1)),
        "rollout/logp_gap_max": float(gap_bT.max()),
    }


def _score(run: Run, params, rows: dict, mask_BT, seen):
    logp_BT, _ = score_rollout(
        run.graphdef,
        params,
        *rows.values(),
        mask_BT,
        temperature=run.config.rollout.temperature,
        microbatch_size=run.config.train.microbatch_size,
        group_B=np.arange(len(mask_BT)) // run.config.rollout.samples_per_prompt,
        mesh=run.mesh,
        row_len=run.row_len,
        seen=seen,
    )
    return logp_BT


def _metrics(scored: groups.Scored) -> dict:
    rollout = scored.rollout
    return {
        "reward/mean": float(np.nanmean(scored.reward_QG)),
        "reward/accuracy": float(np.mean([s.accuracy for s in scored.scores])),
        "reward/format": float(np.mean([s.format for s in scored.scores])),
        "response/length_mean": float(rollout.mask_BT.sum(axis=1).mean()),
        "response/truncated_frac": float(rollout.truncated_B.mean()),
        **_extra_rewards(scored.scores),
        **masked.to_host(group_metrics(scored.reward_QG)),
    }


def _extra_rewards(scores) -> dict:
    """Means of the parts beyond accuracy and format: repetition and users' own."""
    names = sorted({name for score in scores for name in score.extra})
    return {
        f"reward/{name}": float(np.mean([score.extra.get(name, 0.0) for score in scores]))
        for name in names
    }


def _samples(run: Run, scored: groups.Scored, advantage_BT) -> list[dict]:
    """The first responses of the rollout, spread over its prompts."""
    count = min(run.config.log.rollouts, len(scored.texts))
    reward_B = scored.reward_QG.reshape(-1)
    picks = np.linspace(0, len(scored.texts), count, endpoint=False, dtype=int)
    asked_B = np.repeat(np.arange(len(scored.reward_QG)), scored.reward_QG.shape[1])
    return [
        {
            "prompt": scored.prompts.examples[asked_B[b]].prompt,
            **run.thumbnails(scored.prompts.examples[asked_B[b]]),
            "response": scored.texts[b],
            "gold": scored.prompts.examples[asked_B[b]].gold,
            "accuracy": scored.scores[b].accuracy,
            "format": scored.scores[b].format,
            "reward": float(reward_B[b]),
            "advantage": float(advantage_BT[b, 0]),
            "truncated": bool(scored.rollout.truncated_B[b]),
        }
        for b in picks
    ]
