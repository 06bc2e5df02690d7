"""Which curves a report shows, in what order, and what each one tells."""

from typing import NamedTuple


class Chart(NamedTuple):
    title: str
    unit: str  # of the y axis
    series: tuple[tuple[str, str], ...]  # (metric name, label)
    help: str = ""  # what a person looks for
    percent: bool = False  # the metric is a share
    whole: bool = False  # a share drawn on the full scale 0..100
    log: bool = False  # logarithmic when it spans more than a factor of 50


CHARTS = (
    Chart(
        "Held-out accuracy",
        "% of problems",
        (
            ("eval/greedy_accuracy", "greedy"),
            ("eval/mean_accuracy", "mean of samples"),
            ("eval/blank_accuracy", "greedy, images blank"),
        ),
        "Problems never trained on.",
        percent=True,
        whole=True,
    ),
    Chart(
        "Reward",
        "reward a response",
        (("reward/mean", "total"), ("reward/accuracy", "accuracy"), ("reward/format", "format")),
        "Accuracy and format are shares before weighting.",
    ),
    Chart("Supervised loss", "nats a token", (("loss/nll", "negative log-likelihood"),)),
    Chart("Response length", "tokens", (("response/length_mean", "mean"),)),
    Chart(
        "Truncated responses",
        "% of responses",
        (("response/truncated_frac", "hit the length cap"),),
        percent=True,
    ),
    Chart(
        "Clipped tokens",
        "% of tokens",
        (("ratio/clip_frac_low", "lower bound"), ("ratio/clip_frac_high", "upper bound")),
        "0 throughout means that the clip never acts.",
        percent=True,
    ),
    Chart(
        "Largest ratio",
        "π / π_old",
        (("ratio/max", "maximum over tokens"),),
        "Spikes warn of instability.",
        log=True,
    ),
    Chart("Policy drift", "loss", (("loss/drift", "drift term"),)),
    Chart("Policy loss", "loss", (("loss/policy", "policy term"),)),
    Chart(
        "KL divergence",
        "nats a token",
        (("kl/old", "from the old policy"), ("kl/ref", "from the reference")),
    ),
    Chart(
        "Entropy",
        "nats a token",
        (("entropy", "policy"),),
        "A fall to 0 means that all samples are alike.",
    ),
    Chart("Gradient norm", "before clipping", (("grad_norm", "global norm"),), log=True),
    Chart(
        "Guarded steps",
        "count",
        (("guard/skipped", "updates skipped"), ("guard/spikes", "spikes")),
        "Skipped: loss or gradient was not finite. Spikes: see spikes.jsonl.",
    ),
    Chart("Learning rate", "step size", (("lr", "learning rate"),)),
    Chart(
        "Groups without signal",
        "% of prompts",
        (("group/zero_std_frac", "all rewards equal"),),
        percent=True,
    ),
    Chart(
        "Sampler against trainer",
        "nats a token",
        (("rollout/logp_gap_mean", "mean gap"), ("rollout/logp_gap_max", "largest gap")),
        "Difference of log-probabilities; near 0 when both compute alike.",
        log=True,
    ),
    Chart(
        "Old log-probabilities",
        "% of rollouts",
        (("old/rescored", "scored again by the trainer"),),
        "0: the sampler's own were taken (train.old_logp).",
        percent=True,
    ),
    Chart(
        "Model FLOPs utilisation",
        "% of matrix products",
        (("train/mfu", "an optimiser step"),),
        percent=True,
    ),
    Chart(
        "Throughput",
        "tokens a second",
        (("rollout/tokens_per_s", "sampling"), ("train/tokens_per_s", "training")),
    ),
    Chart(
        "Time",
        "seconds",
        (("time/rollout_s", "a rollout"), ("time/train_s", "an optimiser step")),
    ),
    Chart(
        "Held-out format",
        "% of responses",
        (("eval/greedy_format", "greedy"), ("eval/mean_format", "mean of samples")),
        percent=True,
    ),
    Chart(
        "Held-out length",
        "tokens",
        (("eval/greedy_length", "greedy"), ("eval/mean_length", "mean of samples")),
    ),
    Chart(
        "Responses that the verifier lost",
        "responses a rollout",
        (("reward/timeouts", "timed out"), ("reward/errors", "failed")),
    ),
)


def others(columns: dict) -> list[Chart]:
    """One chart for each metric that no chart above draws."""
    drawn = {name for chart in CHARTS for name, _ in chart.series} | {"step", "rollout"}
    drawn |= {"eval/problems", "eval/samples", "eval/mean_accuracy_sem"}  # told in the headline
    return [Chart(name, "", ((name, name),)) for name in sorted(columns.keys() - drawn)]
