"""Held-out problems answered by the policy: greedy, and the mean of k samples."""

import dataclasses
import time

import numpy as np

from cpgd_jax import groups
from cpgd_jax.metrics import table
from cpgd_jax.run import Run

SHOWN = 16  # responses written to rollouts.jsonl
_EVAL_STEP = 2**31 - 1  # random numbers of their own, the same at every evaluation of a run


def held_out(run: Run, params, verifier):
    """(metrics, rows): eval/* numbers, and the first greedy responses for rollouts.jsonl.

    eval/blank_accuracy, by config.eval.blank_images: greedy with white images.

    eval/greedy_* at temperature 0; eval/mean_* over config.eval.samples responses a problem sampled
    as in training, eval/mean_accuracy_sem its standard error over problems.
    """
    started, count, k = time.monotonic(), len(run.held_out), run.config.eval.samples
    greedy, rows = _answer(run, params, verifier, 1, 0.0)
    mean, _ = _answer(run, params, verifier, k, run.config.rollout.temperature)
    accuracy_Q = mean["accuracy"].reshape(count, k).mean(axis=1)
    metrics = {
        "eval/greedy_accuracy": greedy["accuracy"].mean(),
        "eval/greedy_format": greedy["format"].mean(),
        "eval/greedy_length": greedy["length"].mean(),
        "eval/mean_accuracy": accuracy_Q.mean(),
        "eval/mean_accuracy_sem": accuracy_Q.std(ddof=count > 1) / count**0.5,
        "eval/mean_format": mean["format"].mean(),
        "eval/mean_length": mean["length"].mean(),
        "eval/problems": count,
        "eval/samples": k,
    }
    if run.config.eval.blank_images:
        blind = dataclasses.replace(run, reader=run.reader._replace(blank=True))
        metrics["eval/blank_accuracy"] = _answer(blind, params, verifier, 1, 0.0)[0][
            "accuracy"
        ].mean()
    metrics["time/eval_s"] = time.monotonic() - started
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
    first = next(iter(metrics.values()))
    if "eval/blank_accuracy" in first:
        names["greedy, images blank: accuracy"] = "eval/blank_accuracy"
    rows = [[label, *(m[name] for m in metrics.values())] for label, name in names.items()]
    facts = f"{first['eval/problems']:.0f} problems, k = {first['eval/samples']:.0f}"
    table(f"{title} ({facts})", ["", *metrics], rows)


def _answer(run: Run, params, verifier, group, temperature):
    """({accuracy, format, length}, each [B] float64, and rows for rollouts.jsonl)."""
    examples, key = run.held_out, (run.config.seed, _EVAL_STEP)
    _, rollout, texts = groups.respond(
        run, params, examples, group=group, key=key, temperature=temperature
    )
    scores = groups.judge(run.config, verifier, examples, texts).result()
    totals = {
        "accuracy": np.array([s.accuracy for s in scores], np.float64),
        "format": np.array([s.format for s in scores], np.float64),
        "length": rollout.mask_BT.sum(axis=1),
    }
    rows = [
        {
            "prompt": examples[b // group].prompt,
            **run.thumbnails(examples[b // group]),
            "response": text,
            "gold": examples[b // group].gold,
            "accuracy": score.accuracy,
            "format": score.format,
            "reward": score.total,
            "truncated": bool(rollout.truncated_B[b]),
        }
        for b, (text, score) in enumerate(zip(texts[:SHOWN], scores, strict=False))
    ]
    return totals, rows
