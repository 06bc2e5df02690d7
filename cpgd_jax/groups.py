"""Groups of responses and their rewards: prompts -> samples -> verdicts, refilled where asked."""

import dataclasses
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from cpgd_jax import distributed, progress
from cpgd_jax.advantages import group_stats, overlong_penalty
from cpgd_jax.algorithms import Algorithm
from cpgd_jax.config import Config
from cpgd_jax.data.batching import prompt_batch
from cpgd_jax.rewards import Score, rules
from cpgd_jax.rollout import engine, prompt_ids
from cpgd_jax.run import Run
from cpgd_jax.types import PromptBatch, Rollout


class Sampled(NamedTuple):
    """Groups whose responses are being scored in the background; B = Q * G rows."""

    prompts: PromptBatch
    rollout: Rollout
    texts: list[str]  # B decoded responses
    verdicts: "Verdicts"  # B


class Verdicts(NamedTuple):
    """Of a verifier that works in the background, on this process's share of the responses."""

    own: Future

    def result(self) -> list[Score]:
        """Those of all responses, once they are there; called by all processes alike."""
        own = [dataclasses.asdict(score) for score in self.own.result()]
        return [Score(**score) for part in distributed.gather(own) for score in part]


class Scored(NamedTuple):
    """Groups with their rewards; B = Q * G rows."""

    prompts: PromptBatch
    rollout: Rollout
    texts: list[str]  # B decoded responses
    scores: list  # B verdicts of the verifier
    reward_QG: np.ndarray  # float32


def draw(run: Run, row: Algorithm, params, verifier, index, position):
    """(Sampled or Scored, tokens, new position) of a full rollout.

    With dynamic sampling, groups without a signal are replaced, at most `max_refills` times, after
    which the rest is filled with such groups (their advantage is 0).
    """
    Q, refills = run.config.rollout.prompts, run.config.rollout.max_refills
    kept, spare, tokens = [], [], 0
    for _ in range(1 + (refills if row.dynamic_sampling else 0)):
        sampled = _one_rollout(run, params, verifier, index, position)
        position += Q
        tokens += int(sampled.rollout.mask_BT.sum())
        if not row.dynamic_sampling:
            return sampled, tokens, position
        done = rewarded(run.config, row, sampled)
        signal_Q = np.asarray(group_stats(done.reward_QG).signal_Q1)[:, 0]
        kept += [(done, q) for q in np.flatnonzero(signal_Q)]
        spare += [(done, q) for q in np.flatnonzero(~signal_Q)]
        if len(kept) >= Q:
            break
    if len(kept) < Q:
        progress.warn(
            f"rollout {index}: {refills} refills gave {len(kept)} of {Q} groups with a signal;"
            " going on with these"
        )
    return _gather((kept + spare)[:Q]), tokens, position


def read_prompts(run: Run, params, examples) -> PromptBatch:
    """The examples' prompts, and what the model sees of their images."""
    limit, system_prompt = run.config.rollout.max_prompt_len, run.config.data.system_prompt
    prompts = prompt_batch(examples, run.tokenizer, system_prompt, limit, run.reader)
    return run.look(params, prompts)


def respond(run: Run, params, examples, *, group, key, temperature, prompt_id_Q=None):
    """(prompts, rollout, texts): `group` responses to each example, and their decoded text.

    key, prompt_id_Q: see `engine.sample`; prompt ids default to checksums of the prompts. At
    temperature 0 (greedy) config.rollout.top_k and top_p are not used.
    """
    r, tokenizer = run.config.rollout, run.tokenizer
    prompts = read_prompts(run, params, examples)
    rollout = engine.sample(
        run.graphdef,
        params,
        prompts.token_QS,
        prompts.mask_QS,
        prompt_id_Q=_prompt_ids(prompts) if prompt_id_Q is None else prompt_id_Q,
        group=group,
        max_new_tokens=r.max_response_len,
        key=key,
        stop_ids=tokenizer.stop_ids,
        temperature=temperature,
        top_k=r.top_k if temperature else 0,
        top_p=r.top_p if temperature else 1.0,
        forbidden_ids=tokenizer.forbidden_ids,
        slots=r.slots or None,
        dtype=r.decode_dtype,
        cache_dtype=r.cache_dtype,
        seen=prompts.seen,
    )
    responses = [ids[mask] for ids, mask in zip(rollout.response_BT, rollout.mask_BT, strict=True)]
    texts = distributed.divide(tokenizer.decode, responses)
    return prompts, rollout, texts


def _prompt_ids(prompts: PromptBatch):
    return prompt_ids(list(prompts.token_QS), prompts.images)


def judge(config: Config, verifier, examples, texts) -> Verdicts:
    """Of each text, group by group."""
    group = len(texts) // len(examples)
    golds = [example.gold for example in examples for _ in range(group)]
    own = verifier.submit(
        distributed.share(texts),
        distributed.share(golds),
        accuracy_weight=config.reward.accuracy_weight,
        format_weight=config.reward.format_weight,
        repetition_penalty=config.reward.repetition_penalty,
    )
    return Verdicts(own)


def _one_rollout(run: Run, params, verifier, index, position) -> Sampled:
    config, r = run.config, run.config.rollout
    examples = run.read(range(position, position + r.prompts))
    prompts, rollout, texts = respond(
        run,
        params,
        examples,
        group=r.samples_per_prompt,
        key=(config.seed, index),
        temperature=r.temperature,
        prompt_id_Q=position + np.arange(r.prompts),
    )
    return Sampled(prompts, rollout, texts, judge(config, verifier, examples, texts))


def rewarded(config: Config, row: Algorithm, drawn: Sampled | Scored) -> Scored:
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
    if buffer is None and not row.overlong:
        buffer = 0
    overlong_B = np.asarray(overlong_penalty(length_B, cap, buffer, config.reward.overlong_penalty))
    return overlong_B - config.reward.length_penalty * rules.length(length_B, cap)


def _gather(picks) -> Scored:
    """Scored groups picked from several rollouts, as one."""
    G = picks[0][0].reward_QG.shape[1]

    def rows(get):
        return np.concatenate([get(s)[q * G : (q + 1) * G] for s, q in picks])

    prompts = PromptBatch(
        tuple(s.prompts.examples[q] for s, q in picks),
        np.stack([s.prompts.token_QS[q] for s, q in picks]),
        np.stack([s.prompts.mask_QS[q] for s, q in picks]),
        tuple(s.prompts.images[q] if s.prompts.images else () for s, q in picks),
        tuple(s.prompts.seen[q] if s.prompts.seen else None for s, q in picks),
    )
    rollout = Rollout(*(rows(lambda s, i=i: s.rollout[i]) for i in range(len(Rollout._fields))))
    texts = [t for s, q in picks for t in s.texts[q * G : (q + 1) * G]]
    scores = [v for s, q in picks for v in s.scores[q * G : (q + 1) * G]]
    return Scored(prompts, rollout, texts, scores, np.stack([s.reward_QG[q] for s, q in picks]))
