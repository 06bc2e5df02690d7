"""Values of a config that are out of range or contradict each other: one line that names the key.

What depends on the algorithm's row is checked in `algorithms`, on tokenizer or devices in `run`.
"""

from cpgd_jax.errors import UserError, nearest
from cpgd_jax.sizes import check_vision

CHOICES = {
    "stage": ("rl", "supervised"),
    "model.dtype": ("float32", "bfloat16"),
    "rollout.decode_dtype": ("", "float32", "bfloat16"),
    "rollout.cache_dtype": ("", "float32", "bfloat16"),
    "optim.master_dtype": ("float32", "bfloat16"),
    "model.remat": ("none", "dots", "block", "offload"),
    "train.old_logp": ("rescore", "sampler"),
    "watch.action": ("warn", "stop", "rollback"),
    "model.attention": ("auto", "dense", "chunked", "splash", "cudnn"),
    "data.source": ("arithmetic", "pictures", "jsonl", "tfds"),
    "data.system_prompt": ("reasoning", "boxed", "worked_sums", "worked_questions", "none"),
}
GENERATED = ("arithmetic", "pictures")  # sources without files
PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
POSITIVE = (
    "num_rollouts",
    "rollout.prompts",
    "rollout.samples_per_prompt",
    "rollout.max_prompt_len",
    "rollout.max_response_len",
    "rollout.temperature",
    "model.num_layers",
    "model.hidden_size",
    "model.mlp_size",
    "model.num_heads",
    "model.num_kv_heads",
    "model.head_dim",
    "model.vocab_size",
    "model.rope_theta",
    "model.norm_eps",
    "model.max_positions",
    "data.arithmetic.max_operand",
    "data.min_pixels",
    "train.minibatch_size",
    "train.microbatch_size",
    "train.max_logp_gap",
    "train.epochs",
    "supervised.steps",
    "supervised.batch_size",
    "model.lora.alpha",
    "optim.lr",
    "optim.eps",
    "optim.grad_clip",
    "eval.problems",
    "eval.samples",
    "reward.timeout_s",
    "reward.workers",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.grace_s",
    "guard.max_skips",
    "watch.window",
)
NOT_NEGATIVE = (
    "seed",
    "rollout.top_k",
    "rollout.slots",
    "rollout.max_refills",
    "train.row_len",
    "model.lora.rank",
    "optim.weight_decay",
    "optim.warmup_steps",
    "eval.every",
    "log.rollouts",
    "guard.keep_batches",
    "guard.grad_spike",
    "guard.ratio_spike",
    "watch.max_rollbacks",
    "loss.entropy_coef",
    "loss.sampler_is_cap",
    "reward.accuracy_weight",
    "reward.format_weight",
    "reward.overlong_penalty",
    "reward.repetition_penalty",
    "reward.length_penalty",
)
FRACTIONS = (
    "watch.length_frac",
    "watch.entropy_frac",
    "watch.truncated_frac",
    "watch.no_signal_frac",
    "optim.lr_end_frac",
    "data.max_broken",
    "data.arithmetic.three_operand_frac",
    "data.arithmetic.held_out_frac",
    "data.arithmetic.slip_frac",
    "data.arithmetic.bad_format_frac",
    "data.pictures.held_out_frac",
    "data.pictures.slip_frac",
    "data.pictures.bad_format_frac",
)


def check(c) -> None:
    """Raises UserError for the first fault of a `config.Config`."""
    for key, allowed in CHOICES.items():
        value = get(c, key)
        if value not in allowed:
            hint = f"{nearest(value, allowed)}: choose one of {', '.join(allowed)}"
            raise UserError(f"config.{key} is {value!r}{hint}")
    _check_ranges(c)
    _check_model(c)
    _check_lora(c)
    if c.stage == "supervised":
        _check_supervised(c)
    else:
        _check_rollout(c)
    _check_data(c)


def get(config, dotted: str):
    """The field `a.b.c` of nested records."""
    for name in dotted.split("."):
        config = getattr(config, name)
    return config


def _check_ranges(c) -> None:
    # Written so that NaN, which compares with nothing, is refused too.
    for keys, fits, demand in (
        (POSITIVE, lambda x: 0 < x < float("inf"), "above 0"),
        (NOT_NEGATIVE, lambda x: 0 <= x < float("inf"), "0 or above"),
        (FRACTIONS, lambda x: 0 <= x <= 1, "between 0 and 1"),
        (("optim.b1", "optim.b2"), lambda x: 0 <= x < 1, "at least 0 and below 1"),
        (("rollout.top_p",), lambda x: 0 < x <= 1, "above 0 and at most 1; 1 = off"),
    ):
        for key in keys:
            if get(c, key) is not None and not fits(get(c, key)):
                raise UserError(f"config.{key} is {get(c, key)}: it must be {demand}")
    buffer, cap = c.reward.overlong_buffer, c.rollout.max_response_len
    if buffer is not None and not 0 <= buffer <= cap:
        raise UserError(
            f"config.reward.overlong_buffer is {buffer}: it must be between 0 and"
            f" config.rollout.max_response_len {cap}"
        )


def _check_data(c) -> None:
    for key in ("data.question_field", "data.answer_field"):
        if not get(c, key):
            raise UserError(f"config.{key} is '': name the field of a row")
    for key in ("data.path", "data.held_out_path"):
        if c.data.source not in GENERATED and not get(c, key):
            raise UserError(f"config.{key} is '': config.data.source {c.data.source!r} needs it")
    if c.data.max_pixels < c.data.min_pixels:
        raise UserError(
            f"config.data.max_pixels is {c.data.max_pixels}: it must be at least"
            f" config.data.min_pixels {c.data.min_pixels}"
        )


def _check_model(c) -> None:
    m, r = c.model, c.rollout
    if None not in (m.num_heads, m.num_kv_heads) and m.num_heads % m.num_kv_heads:
        raise UserError(
            f"config.model.num_heads is {m.num_heads}: it must be a multiple of"
            f" config.model.num_kv_heads {m.num_kv_heads}"
        )
    if m.head_dim is not None and m.head_dim % 2:
        raise UserError(f"config.model.head_dim is {m.head_dim}: rotary embedding needs it even")
    if m.vision is not None and m.head_dim is not None:
        check_vision(m.vision, m.head_dim, "config.model.vision")
    if m.max_positions is not None and r.max_prompt_len + r.max_response_len > m.max_positions:
        raise UserError(
            f"config.rollout.max_prompt_len {r.max_prompt_len} + max_response_len"
            f" {r.max_response_len} is over the {m.max_positions} tokens that the model was made"
            " for (config.model.max_positions): lower them"
        )


def _check_lora(c) -> None:
    targets = c.model.lora.targets
    for name in targets:
        if name not in PROJECTIONS:
            raise UserError(
                f"config.model.lora.targets has {name!r}{nearest(name, PROJECTIONS)}: they are of"
                f" {', '.join(PROJECTIONS)}"
            )
    if c.model.lora.rank and not targets:
        raise UserError("config.model.lora.targets is (): name a projection, or set rank to 0")


def _check_supervised(c) -> None:
    if c.data.source not in GENERATED:
        raise UserError(
            f"config.stage is 'supervised' and config.data.source {c.data.source!r}: only"
            f" {' and '.join(GENERATED)} have demonstrations"
        )
    size, micro = c.supervised.batch_size, c.train.microbatch_size
    if size % micro:
        raise UserError(
            f"config.train.microbatch_size {micro} does not divide"
            f" config.supervised.batch_size {size}"
        )


def _check_rollout(c) -> None:
    G, mini, micro = c.rollout.samples_per_prompt, c.train.minibatch_size, c.train.microbatch_size
    B = c.rollout.prompts * G
    if B % mini:
        alone = "; samples_per_prompt = 1 also leaves a group baseline nothing to compare"
        raise UserError(
            f"config.train.minibatch_size {mini} does not divide the rollout of"
            f" {c.rollout.prompts} prompts x {G} samples = {B} responses: change one of the three"
            f"{alone if G == 1 else ''}"
        )
    if mini % G:
        raise UserError(
            f"config.train.minibatch_size {mini} is not a multiple of"
            f" config.rollout.samples_per_prompt {G}: a minibatch holds whole groups"
        )
    if mini % micro:
        raise UserError(
            f"config.train.microbatch_size {micro} does not divide"
            f" config.train.minibatch_size {mini}"
        )
    if c.train.old_logp == "sampler":
        _check_sampler_is_old(c)


def _check_sampler_is_old(c) -> None:
    r = c.rollout
    for key, value, off in (
        ("rollout.top_k", r.top_k, 0),
        ("rollout.top_p", r.top_p, 1.0),
        ("loss.sampler_is_cap", c.loss.sampler_is_cap, 0),
    ):
        if value != off:
            raise UserError(
                f"config.train.old_logp is 'sampler' and config.{key} {value}: the law sampled is"
                f" then not the one that is trained; set it to {off}, or old_logp to 'rescore'"
            )
