"""One rollout made ready for training: samples, rewards, advantages, `old` log-probs."""

import time
from concurrent.futures import Future
from typing import NamedTuple

import jax
import numpy as np

from cpgd_jax import progress
from cpgd_jax.advantages import advantages, group_metrics, group_stats, overlong_penalty
from cpgd_jax.algorithms import Algorithm
from cpgd_jax.config import Config
from cpgd_jax.data.batching import prompt_batch
from cpgd_jax.ops import masked
from cpgd_jax.rewards import rules
from cpgd_jax.rollout import engine
from cpgd_jax.rollout.scoring import score_rollout
from cpgd_jax.run import Run
from cpgd_jax.types import PromptBatch, Rollout, TrainBatch


class Sampled(NamedTuple):
    """Groups whose responses are being scored in the background; B = Q * G rows."""

    prompts: PromptBatch
    rollout: Rollout
    texts: list[str]  # B decoded responses
    verdicts: Future  # of B verdicts of the verifier


class Scored(NamedTuple):
    """Groups with their rewards; B = Q * G rows."""

    prompts: PromptBatch
    rollout: Rollout
    texts: list[str]  # B decoded responses
    scores: list  # B verdicts of the verifier
    reward_QG: np.ndarray  # float32


def collect(run: Run, row: Algorithm, params, reference, verifier, index: int, position: int):
    """(TrainBatch of the whole rollout, metrics, rows for rollouts.jsonl, new data position)."""
    config = run.config
    started, timeouts, errors = time.monotonic(), verifier.timeouts, verifier.errors
    drawn, sampled_tokens, position = _draw(run, row, params, verifier, index, position)
    sample_s = time.monotonic() - started
    G, rollout = config.rollout.samples_per_prompt, drawn.rollout
    B, T = rollout.response_BT.shape
    rows = {
        "prompt_BS": np.repeat(drawn.prompts.token_QS, G, axis=0),
        "prompt_mask_BS": np.repeat(drawn.prompts.mask_QS, G, axis=0),
        "response_BT": rollout.response_BT,
    }
    old_BT, ref_BT = (
        _score(run, p, rows, rollout.mask_BT) if p is not None else None
        for p in (params, reference)
    )
    started = time.monotonic()
    scored = _scored(config, row, drawn)
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
    metrics = _metrics(scored, old_BT) | {
        "reward/timeouts": verifier.timeouts - timeouts,
        "reward/errors": verifier.errors - errors,
        "time/reward_wait_s": wait_s,
        "rollout/tokens_per_s": sampled_tokens / sample_s,
    }
    return batch, metrics, _samples(config, scored, advantage_BT), position


def rescore(run: Run, params, batch: TrainBatch):
    """ln-probabilities [B, T] of the batch's responses under `params`: the end of an epoch."""
    rows = {k: getattr(batch, k) for k in ("prompt_BS", "prompt_mask_BS", "response_BT")}
    return _score(run, params, rows, batch.mask_BT)


def minibatches(config: Config, batch: TrainBatch, index: int, epoch: int):
    """Minibatches of whole groups, in an order of (seed, rollout, epoch)."""
    G = config.rollout.samples_per_prompt
    groups = np.random.default_rng([config.seed, index, epoch]).permutation(config.rollout.prompts)
    for part in np.split(groups, config.minibatches):
        rows = (part[:, None] * G + np.arange(G)).reshape(-1)
        yield jax.tree.map(lambda x, rows=rows: np.ascontiguousarray(x[rows]), batch)


def _draw(run, row, params, verifier, index, position):
    """(Sampled or Scored, tokens, new position) of a full rollout.

    With dynamic sampling, groups without a signal are replaced, at most `max_refills` times, after
    which the rest is filled with such groups (their advantage is 0).
    """
    Q, refills = run.config.rollout.prompts, run.config.rollout.max_refills
    kept, spare, tokens = [], [], 0
    for attempt in range(1 + (refills if row.dynamic_sampling else 0)):
        sampled = _one_rollout(run, params, verifier, index, position)
        position += Q
        tokens += int(sampled.rollout.mask_BT.sum())
        if not row.dynamic_sampling:
            return sampled, tokens, position
        scored = _scored(run.config, row, sampled)
        signal_Q = np.asarray(group_stats(scored.reward_QG).signal_Q1)[:, 0]
        kept += [(attempt, scored, q) for q in np.flatnonzero(signal_Q)]
        spare += [(attempt, scored, q) for q in np.flatnonzero(~signal_Q)]
        if len(kept) >= Q:
            break
    if len(kept) < Q:
        progress.warn(
            f"rollout {index}: {refills} refills gave {len(kept)} of {Q} groups with a signal;"
            " going on with these"
        )
    return _gather((kept + spare)[:Q]), tokens, position


def _one_rollout(run, params, verifier, index, position) -> Sampled:
    config, r = run.config, run.config.rollout
    examples = [run.source.train(position + q) for q in range(r.prompts)]
    prompts = prompt_batch(examples, run.tokenizer, config.data.system_prompt, r.max_prompt_len)
    rollout = engine.sample(
        run.graphdef,
        params,
        prompts.token_QS,
        prompts.mask_QS,
        prompt_id_Q=position + np.arange(r.prompts),
        group=r.samples_per_prompt,
        max_new_tokens=r.max_response_len,
        key=(config.seed, index),
        stop_ids=run.tokenizer.stop_ids,
        temperature=r.temperature,
        top_k=r.top_k,
        top_p=r.top_p,
        forbidden_ids=run.tokenizer.forbidden_ids,
        slots=r.slots or None,
    )
    texts = [
        run.tokenizer.decode(ids[mask])
        for ids, mask in zip(rollout.response_BT, rollout.mask_BT, strict=True)
    ]
    golds = [example.gold for example in examples for _ in range(r.samples_per_prompt)]
    verdicts = verifier.submit(
        texts,
        golds,
        accuracy_weight=config.reward.accuracy_weight,
        format_weight=config.reward.format_weight,
        repetition_penalty=config.reward.repetition_penalty,
    )
    return Sampled(prompts, rollout, texts, verdicts)


def _scored(config: Config, row: Algorithm, drawn: Sampled | Scored) -> Scored:
    """The groups with their rewards, once the verdicts are there."""
    if isinstance(drawn, Scored):
        return drawn
    prompts, rollout, texts, verdicts = drawn
    scores = verdicts.result()
    reward_B = np.array([s.total for s in scores], np.float32)
    reward_B += _by_length(config, row, rollout.mask_BT.sum(axis=1))
    reward_QG = reward_B.reshape(-1, config.rollout.samples_per_prompt)
    return Scored(prompts, rollout, texts, scores, reward_QG)


def _by_length(config: Config, row: Algorithm, length_B) -> np.ndarray:
    """What the tokens of a response take off its reward, below 0."""
    cap, buffer = config.rollout.max_response_len, config.reward.overlong_buffer
    if buffer is None:
        buffer = cap // 5 if row.overlong else 0
    overlong_B = np.asarray(overlong_penalty(length_B, cap, buffer, config.reward.overlong_penalty))
    return overlong_B - config.reward.length_penalty * rules.length(length_B, cap)


def _gather(picks) -> Scored:
    """Scored groups picked from several rollouts, as one."""
    G = picks[0][1].reward_QG.shape[1]

    def rows(get):
        return np.concatenate([get(s)[q * G : (q + 1) * G] for _, s, q in picks])

    prompts = PromptBatch(
        tuple(s.prompts.examples[q] for _, s, q in picks),
        np.stack([s.prompts.token_QS[q] for _, s, q in picks]),
        np.stack([s.prompts.mask_QS[q] for _, s, q in picks]),
    )
    rollout = Rollout(*(rows(lambda s, i=i: s.rollout[i]) for i in range(len(Rollout._fields))))
    texts = [t for _, s, q in picks for t in s.texts[q * G : (q + 1) * G]]
    scores = [v for _, s, q in picks for v in s.scores[q * G : (q + 1) * G]]
    return Scored(prompts, rollout, texts, scores, np.stack([s.reward_QG[q] for _, s, q in picks]))


def _trained(row: Algorithm, scored: Scored) -> np.ndarray:
    """mask_BT less what the row leaves out: truncated responses, groups that were filtered."""
    keep_B = np.ones(len(scored.texts), bool)
    if row.mask_truncated:
        keep_B &= ~scored.rollout.truncated_B
    if row.dynamic_sampling:
        signal_Q = np.asarray(group_stats(scored.reward_QG).signal_Q1)[:, 0]
        keep_B &= np.repeat(signal_Q, scored.reward_QG.shape[1])
    return scored.rollout.mask_BT & keep_B[:, None]


def _score(run: Run, params, rows: dict, mask_BT):
    logp_BT, _ = score_rollout(
        run.graphdef,
        params,
        *rows.values(),
        mask_BT,
        temperature=run.config.rollout.temperature,
        microbatch_size=run.config.train.microbatch_size,
    )
    return logp_BT


def _metrics(scored: Scored, old_BT) -> dict:
    rollout = scored.rollout
    gap_BT = np.abs(np.where(rollout.mask_BT, rollout.sampler_logp_BT - old_BT, 0.0))
    return {
        "reward/mean": float(np.nanmean(scored.reward_QG)),
        "reward/accuracy": float(np.mean([s.accuracy for s in scored.scores])),
        "reward/format": float(np.mean([s.format for s in scored.scores])),
        "response/length_mean": float(rollout.mask_BT.sum(axis=1).mean()),
        "response/truncated_frac": float(rollout.truncated_B.mean()),
        "rollout/logp_gap_mean": float(gap_BT.sum() / max(rollout.mask_BT.sum(), 1)),
        "rollout/logp_gap_max": float(gap_BT.max()),
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


def _samples(config: Config, scored: Scored, advantage_BT) -> list[dict]:
    """The first responses of the rollout, spread over its prompts."""
    count = min(config.log.rollouts, len(scored.texts))
    reward_B = scored.reward_QG.reshape(-1)
    picks = np.linspace(0, len(scored.texts), count, endpoint=False, dtype=int)
    return [
        {
            "prompt": scored.prompts.examples[b // scored.reward_QG.shape[1]].prompt,
            "response": scored.texts[b],
            "gold": scored.prompts.examples[b // scored.reward_QG.shape[1]].gold,
            "accuracy": scored.scores[b].accuracy,
            "format": scored.scores[b].format,
            "reward": float(reward_B[b]),
            "advantage": float(advantage_BT[b, 0]),
            "truncated": bool(scored.rollout.truncated_B[b]),
        }
        for b in picks
    ]
