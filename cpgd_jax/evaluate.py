"""Held-out problems answered by the policy: greedy, and the mean of k samples."""

import time

import numpy as np

from cpgd_jax.data.batching import prompt_batch
from cpgd_jax.metrics import table
from cpgd_jax.rollout import engine, prompt_ids

_EVAL_STEP = 2**31 - 1  # random numbers of their own, the same at every evaluation of a run


def held_out(graphdef, params, examples, tokenizer, verifier, config):
    """(metrics, rows): eval/* numbers, and one row a greedy response for rollouts.jsonl.

    eval/greedy_* at temperature 0; eval/mean_* over config.eval.samples responses a problem sampled
    as in training, eval/mean_accuracy_sem its standard error over problems.
    """
    started = time.monotonic()
    greedy, rows = _answer(graphdef, params, examples, tokenizer, verifier, config, 1, 0.0)
    temperature, k = config.rollout.temperature, config.eval.samples
    mean, _ = _answer(graphdef, params, examples, tokenizer, verifier, config, k, temperature)
    accuracy_Q = mean["accuracy"].reshape(len(examples), k).mean(axis=1)
    metrics = {
        "eval/greedy_accuracy": greedy["accuracy"].mean(),
        "eval/greedy_format": greedy["format"].mean(),
        "eval/greedy_length": greedy["length"].mean(),
        "eval/mean_accuracy": accuracy_Q.mean(),
        "eval/mean_accuracy_sem": accuracy_Q.std(ddof=len(examples) > 1) / len(examples) ** 0.5,
        "eval/mean_format": mean["format"].mean(),
        "eval/mean_length": mean["length"].mean(),
        "eval/problems": len(examples),
        "eval/samples": k,
        "time/eval_s": time.monotonic() - started,
    }
    return {name: float(value) for name, value in metrics.items()}, rows


def show(title: str, metrics: dict) -> None:
    """Prints the table of one or more evaluations: {column title: metrics of `held_out`}."""
    names = {
        "greedy: accuracy": "eval/greedy_accuracy",
        "greedy: format": "eval/greedy_format",
        "mean of k: accuracy": "eval/mean_accuracy",
        "mean of k: standard error": "eval/mean_accuracy_sem",
        "mean of k: format": "eval/mean_format",
        "mean of k: length (tokens)": "eval/mean_length",
    }
    rows = [[label, *(m[name] for m in metrics.values())] for label, name in names.items()]
    first = next(iter(metrics.values()))
    facts = f"{first['eval/problems']:.0f} problems, k = {first['eval/samples']:.0f}"
    table(f"{title} ({facts})", ["", *metrics], rows)


def _answer(graphdef, params, examples, tokenizer, verifier, config, group, temperature):
    r = config.rollout
    prompts = prompt_batch(examples, tokenizer, config.data.system_prompt, r.max_prompt_len)
    rollout = engine.sample(
        graphdef,
        params,
        prompts.token_QS,
        prompts.mask_QS,
        prompt_id_Q=prompt_ids(list(prompts.token_QS)),
        group=group,
        max_new_tokens=r.max_response_len,
        key=(config.seed, _EVAL_STEP),
        stop_ids=tokenizer.stop_ids,
        temperature=temperature,
        top_k=r.top_k if temperature else 0,
        top_p=r.top_p if temperature else 1.0,
        forbidden_ids=tokenizer.forbidden_ids,
        slots=r.slots or None,
    )
    texts = [
        tokenizer.decode(ids[mask])
        for ids, mask in zip(rollout.response_BT, rollout.mask_BT, strict=True)
    ]
    golds = [example.gold for example in examples for _ in range(group)]
    scores = verifier.score_batch(
        texts,
        golds,
        accuracy_weight=config.reward.accuracy_weight,
        format_weight=config.reward.format_weight,
        repetition_penalty=config.reward.repetition_penalty,
    )
    totals = {
        "accuracy": np.array([s.accuracy for s in scores], np.float64),
        "format": np.array([s.format for s in scores], np.float64),
        "length": rollout.mask_BT.sum(axis=1),
    }
    rows = [
        {
            "prompt": examples[b // group].prompt,
            "response": text,
            "gold": golds[b],
            "accuracy": score.accuracy,
            "format": score.format,
            "reward": score.total,
            "truncated": bool(rollout.truncated_B[b]),
        }
        for b, (text, score) in enumerate(zip(texts, scores, strict=True))
    ]
    return totals, rows
