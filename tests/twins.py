"""The algorithms once more, in NumPy float64 and plain loops, from their published definitions.

Nothing here imports cpgd_jax, so a mistake has to be made twice to pass. Gradients are by hand.
"""

import math

import numpy as np

# name -> (baseline, weight, global norm), objective, drift alpha, aggregation, (eps low, eps high)
TABLE = {
    "pg": (("mean", "std", False), "pg", 0, "prompt_token_mean", (0.2, 0.2)),
    "pgd": (("mean", "std", False), "pg", 0.01, "prompt_token_mean", (0.2, 0.2)),
    "cpg": (("mean", "std", False), "log clip", 0, "prompt_token_mean", (0.2, 0.2)),
    "cpgd": (("mean", "std", False), "log clip", 0.01, "prompt_token_mean", (0.2, 0.2)),
    "grpo": (("mean", "std", False), "ppo", 0, "seq_mean_token_mean", (0.2, 0.2)),
    "grpo_no_clip": (("mean", "std", False), "ratio", 0, "seq_mean_token_mean", (0.2, 0.2)),
    "grpo_dual_clip": (("mean", "std", False), "dual", 0, "seq_mean_token_mean", (0.2, 0.2)),
    "grpo_drift": (("mean", "std", False), "ppo", 0.01, "seq_mean_token_mean", (0.2, 0.2)),
    "rloo": (("loo", "equal", True), "ppo", 0, "seq_mean_token_mean", (0.2, 0.2)),
    "reinforce_pp": (("raw", "equal", True), "ppo", 0, "seq_mean_token_mean", (0.2, 0.2)),
    "dapo": (("mean", "std", False), "ppo", 0, "token_mean", (0.2, 0.28)),
    "dr_grpo": (("mean", "equal", False), "ppo", 0, "constant_length", (0.2, 0.2)),
    "gpg": (("mean", "gpg", False), "pg", 0, "token_mean", (0.2, 0.2)),
}


def objective(kind, d, A, low, high, dual=3.0):
    """(value, derivative by logp) of one token."""
    r = math.exp(d)
    if kind == "pg":
        return d * A, A
    if kind == "ratio":
        return r * A, r * A
    if kind == "log clip":
        inside = min(max(d, math.log(1 - low)), math.log(1 + high))
        return (d * A, A) if d * A <= inside * A else (inside * A, 0.0)
    inside = min(max(r, 1 - low), 1 + high)
    value, slope = (r * A, r * A) if r * A <= inside * A else (inside * A, 0.0)
    if kind == "dual" and A < 0 and value < dual * A:
        return dual * A, 0.0
    return value, slope


def kl(kind, logp, ref):
    """(value, derivative by logp) of an estimator of KL(new, ref)."""
    x = logp - ref
    if kind == "k1":
        return x, 1.0
    if kind == "k2":
        return x * x / 2, x
    return math.exp(-x) - 1 + x, 1 - math.exp(-x)


def weights(aggregation, mask, group, max_response_len):
    rows = [b for b in range(len(mask)) if mask[b].any()]
    tokens = {b: int(mask[b].sum()) for b in rows}
    prompts = sorted({group[b] for b in rows})
    out = np.zeros(mask.shape)
    for b in rows:
        of_prompt = sum(tokens[k] for k in rows if group[k] == group[b])
        out[b, mask[b]] = {
            "prompt_token_mean": 1 / len(prompts) / of_prompt,
            "token_mean": 1 / sum(tokens.values()),
            "seq_mean_token_mean": 1 / len(rows) / tokens[b],
            "seq_mean_token_sum": 1 / len(rows),
            "constant_length": 1 / len(rows) / max_response_len,
        }[aggregation]
    return out


def loss(
    name, logp, old, A, mask, group, *, aggregation=None, max_response_len=4096, cap=2.0, dual=3.0,
    schedule=1.0, alpha=None, eps=None, ref=None, beta=0.0, estimator="k3", entropy=None,
    entropy_coef=0.0, sampler=None, is_cap=0.0, epoch=None,
):  # fmt: skip
    """(loss, gradient by logp [B, T], metrics)."""
    _, kind, row_alpha, row_aggregation, row_eps = TABLE[name]
    alpha = row_alpha if alpha is None else alpha
    eps_low, eps_high = row_eps if eps is None else eps
    w = weights(aggregation or row_aggregation, mask, group, max_response_len)
    total, grad = 0.0, np.zeros(mask.shape)
    metrics = dict.fromkeys(("policy", "drift", "kl_ref", "low", "high", "k3"), 0.0)
    for b, t in zip(*np.nonzero(mask), strict=True):
        d = float(logp[b, t]) - float(old[b, t])
        a = float(A[b] if np.ndim(A) == 1 else A[b, t])
        if epoch is not None:
            a *= min(max(math.exp(epoch[b, t] - old[b, t]), 1 - eps_low), 1 + eps_high)
        if is_cap:
            a *= min(math.exp(old[b, t] - sampler[b, t]), is_cap)
        place = mask[b, : t + 1].sum() / mask[b].sum()
        low, high = (e * schedule + (1 - schedule) * e * place for e in (eps_low, eps_high))
        value, slope = objective(kind, d, a, low, high, dual)
        r = math.exp(d)
        token, token_slope = -value + alpha * (r - 1 - d), -slope + alpha * min(r - 1, cap)
        metrics["policy"] -= w[b, t] * value
        metrics["drift"] += w[b, t] * alpha * (r - 1 - d)
        metrics["k3"] += (r - 1 - d) / mask.sum()
        if kind in ("log clip", "ppo", "dual"):
            metrics["low"] += (a < 0 and r < 1 - low) / mask.sum()
            metrics["high"] += (a > 0 and r > 1 + high) / mask.sum()
        if beta:
            k, k_slope = kl(estimator, float(logp[b, t]), float(ref[b, t]))
            token, token_slope = token + beta * k, token_slope + beta * k_slope
            metrics["kl_ref"] += w[b, t] * beta * k
        if entropy_coef:
            token -= entropy_coef * float(entropy[b, t])
        total += w[b, t] * token
        grad[b, t] = w[b, t] * token_slope
    return total, grad, metrics


def advantages(name, reward, length=None, *, baseline=None, weight=None, norm=None, c_omega=3.0):
    """[Q][G] nested lists or array -> float64 [Q, G]."""
    row_baseline, row_weight, row_norm = TABLE[name][0]
    baseline, weight = baseline or row_baseline, weight or row_weight
    norm = row_norm if norm is None else norm
    reward = np.asarray(reward, np.float64)
    Q, G = reward.shape
    length = np.ones((Q, G)) if length is None else np.asarray(length, np.float64)
    out = np.zeros((Q, G))
    valid = np.isfinite(reward)
    informative = [q for q in range(Q) if len(set(reward[q][valid[q]].tolist())) > 1]
    in_informative = sum(int(valid[q].sum()) for q in informative)
    for q in range(Q):
        R = [float(x) for x in reward[q] if math.isfinite(x)]
        for g in range(G):
            if not valid[q, g]:
                continue
            A = reward[q, g]
            if baseline != "raw" and q not in informative:
                A = 0.0
            elif baseline == "mean":
                A -= sum(R) / len(R)
            elif baseline == "loo":
                A -= (sum(R) - A) / (len(R) - 1)
            if weight == "std":
                A = A / np.std(R, ddof=1) if q in informative else 0.0
            elif weight == "clip_filter":
                A *= min(c_omega, Q / max(len(informative), 1))
            elif weight == "gpg":
                A *= valid.sum() / max(in_informative, 1)
            out[q, g] = A
    if norm:
        tokens = np.repeat(out[valid], length[valid].astype(int))
        if len(tokens) and tokens.max() > tokens.min():
            out = (out - tokens.mean()) / tokens.std()
        else:
            out = np.zeros_like(out)
    for q in range(Q):
        for g in range(G):
            if not valid[q, g] or (baseline != "raw" and q not in informative):
                out[q, g] = 0.0
    return out


def returns(reward, log_ratio, mask, beta):
    """REINFORCE++: globally normalised `R - β Σ_{j≥i} ln(π_old/π_ref)`, [Q, G, T]."""
    out = np.zeros(mask.shape)
    for q, g, t in zip(*np.nonzero(mask), strict=True):
        to_go = [log_ratio[q, g, j] for j in range(t, mask.shape[2]) if mask[q, g, j]]
        out[q, g, t] = reward[q, g] - beta * sum(to_go)
    kept = out[mask]
    return np.where(mask, (out - kept.mean()) / kept.std(), 0.0)
