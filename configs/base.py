"""Every field, its default, unit and meaning. The other files override a few of these.

The defaults are those of the CPGD paper's run (arXiv 2505.12504, section 4 and the authors'
released script); see README for what has been run. Hardware: TPU pod or GPUs. Result: not yet run.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from cpgd_jax.errors import UserError


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0  # of parameters, prompt order and sampling
    c.stage = "rl"  # "rl", or "supervised": cross-entropy on the source's demonstrations
    c.algorithm = "cpgd"  # a row of cpgd_jax.algorithms.ALGORITHMS
    c.num_rollouts = 100  # rl: rollouts in all; each gives several optimiser steps

    # ---- model: a Qwen2 or Llama-shaped decoder
    m = c.model = ConfigDict()
    m.init_from = ""  # workdir of an earlier run, or a Hugging Face folder; "" = random
    m.size = ""  # a row of cpgd_jax.sizes.SIZES, e.g. "qwen2.5-7b"
    # None = the value of `size`, else of init_from. What is given must fit init_from.
    m.num_layers = placeholder(int)
    m.hidden_size = placeholder(int)
    m.mlp_size = placeholder(int)
    m.num_heads = placeholder(int)  # query heads
    m.num_kv_heads = placeholder(int)  # key/value heads; divides num_heads
    m.head_dim = placeholder(int)
    m.vocab_size = placeholder(int)  # None without size and init_from: the tokenizer's
    m.rope_theta = placeholder(float)
    m.norm_eps = placeholder(float)
    m.qkv_bias = placeholder(bool)  # True = Qwen2, False = Llama
    m.tie_embeddings = placeholder(bool)
    m.max_positions = placeholder(int)  # tokens the model was made for: bounds prompt + response
    # Of a Qwen2.5-VL: a section with the fields of cpgd_jax.sizes.Vision; None = a text model,
    # unless size or init_from has one.
    m.vision = placeholder(ConfigDict)
    m.init_std = 0.02  # of random initial weights; about 1/sqrt(hidden_size) for a tiny model
    m.dtype = "float32"  # of the computation: float32 or bfloat16; parameters are float32 masters
    # Of whole sequences: auto, dense, chunked, splash (TPU), cudnn (GPU, bfloat16). auto: dense for
    # short rows, else the device's kernel, chunked where there is none.
    m.attention = "auto"
    # What the backward pass computes again, for less memory: none; dots (all but products with
    # parameters); block (all: a third more work); offload (as block, and what is left of a block
    # waits in the host's memory).
    m.remat = "block"
    m.lora = ConfigDict()
    m.lora.rank = 0  # train adapters of this rank beside frozen weights (LoRA); 0 = off
    m.lora.alpha = 16.0  # what they add counts alpha / rank times
    m.lora.targets = ("q", "k", "v", "o", "gate", "up", "down")  # projections that have one

    # ---- data
    d = c.data = ConfigDict()
    # "arithmetic", "pictures" (generated; pictures for a Qwen2.5-VL); "jsonl" (a file); "tfds" (a
    # TFDS builder stored as ArrayRecord, such as experiments.prepare_data makes)
    d.source = "arithmetic"
    d.path = ""  # training rows; jsonl: FILE; tfds: FOLDER:SPLIT, e.g. data/gsm8k:train
    d.held_out_path = ""  # rows for eval only, named in the same way
    # Rows are {question, answer} or {message, answer} (cpgd_jax/data/rows.py); answers such as
    # "solution #### 5" and "... \boxed{5}" are read as 5.
    d.question_field = "question"
    d.answer_field = "answer"
    d.max_broken = 0.01  # share of unreadable rows, counted and left out, above which no run starts
    d.tokenizer = ""  # Hugging Face folder or tokenizer.json; "" = the generated task's own
    # "reasoning", "boxed", "worked_sums" or "worked_questions" (worked examples as earlier turns),
    # "none"; the texts are in cpgd_jax/data/prompts.py
    d.system_prompt = "reasoning"
    # Rows may have images, which a Qwen2.5-VL sees. A row whose prompt with them is over
    # rollout.max_prompt_len is dropped and counted; no image is ever cut.
    d.images = False
    d.image_root = ""  # jsonl: no image lies outside this folder; "" = that of the file of rows
    d.min_pixels = 56 * 56  # an image is resized to so many at least
    d.max_pixels = 28 * 28 * 16_384  # and so many at most; 28 x 28 take a token
    d.arithmetic = ConfigDict()
    d.arithmetic.max_operand = 20  # operands are 0..max_operand
    d.arithmetic.three_operand_frac = 0.5  # share of problems with three operands
    d.arithmetic.held_out_frac = 0.1  # share of the distinct problems kept for eval
    d.arithmetic.slip_frac = 0.5  # demonstrations: share whose answer is one too many
    d.arithmetic.bad_format_frac = 0.2  # demonstrations: share without the required tags
    d.pictures = ConfigDict()
    d.pictures.held_out_frac = 0.1  # share of the distinct pictures kept for eval
    d.pictures.slip_frac = 0.5  # demonstrations: share whose answer is one too many
    d.pictures.bad_format_frac = 0.2  # demonstrations: share without the required tags

    # ---- rollout
    r = c.rollout = ConfigDict()
    r.prompts = 128  # prompts a rollout (Q)
    r.samples_per_prompt = 8  # G
    r.max_prompt_len = 3000  # tokens; a longer prompt is an error before the first step
    r.max_response_len = 4096  # tokens
    r.temperature = 1.0
    r.top_k = 0  # 0 = off
    r.top_p = 1.0  # 1 = off
    r.slots = 0  # responses decoded at a time; 0 = as many as fit, up to 256 a device
    r.decode_dtype = (
        ""  # of the copy of the weights that decodes: float32, bfloat16; "" = model.dtype
    )
    r.cache_dtype = ""  # of keys and values while decoding; "" = decode_dtype
    r.dynamic_sampling = placeholder(bool)  # replace groups of equal rewards; None = the row's
    r.max_refills = 3  # extra rollouts at most per step of dynamic sampling

    # ---- reward = accuracy_weight * accuracy + format_weight * format - penalties + functions
    w = c.reward = ConfigDict()
    w.accuracy_weight = 1.0
    w.format_weight = 0.5
    w.timeout_s = 1.0  # wall-clock limit of one verification
    w.workers = 2  # verifier processes
    # Soft overlong penalty: rises over the last overlong_buffer tokens before the cap.
    w.overlong_buffer = placeholder(int)  # None = the row's (dapo: a fifth of the cap); 0 = off
    w.overlong_penalty = 1.0  # at the cap
    w.repetition_penalty = 0.0  # taken off times the share of repeated runs of 8 words; 0 = off
    w.length_penalty = 0.0  # taken off times tokens / max_response_len; 0 = off
    w.functions = ()  # of your own: ("module:function=weight",); see cpgd_jax/rewards/functions.py

    # ---- the algorithm's cells; None = the row's own value
    a = c.advantage = ConfigDict()
    a.baseline = placeholder(str)  # mean, leave_one_out, none
    a.weight = placeholder(str)  # equal, std, clip_filter, gpg
    a.clip_filter_max = placeholder(float)
    a.global_norm = placeholder(bool)
    a.mask_truncated = False  # leave truncated responses out of the loss
    lo = c.loss = ConfigDict()
    # policy_gradient, log_ratio_clip, ratio, ppo_clip, ppo_dual_clip
    lo.objective = placeholder(str)
    lo.clip_eps_low = placeholder(float)
    lo.clip_eps_high = placeholder(float)
    lo.clip_schedule = placeholder(float)  # lambda of the tight-to-loose threshold; 1 = constant
    lo.dual_clip = placeholder(float)
    lo.drift_coef = placeholder(float)  # alpha
    lo.drift_cap = placeholder(float)  # c
    lo.aggregation = placeholder(str)  # see cpgd_jax.losses.reduce
    lo.kl_coef = placeholder(float)  # beta, to the frozen initial policy; 0 loads no reference
    lo.kl_estimator = placeholder(str)  # k2 or k3 as a loss; k1 in the reward only
    lo.kl_in = placeholder(str)  # loss, reward
    lo.entropy_coef = 0.0  # entropy bonus
    lo.sampler_is_cap = 0.0  # cap of the importance weight trainer/sampler; 0 = off

    # ---- optimisation
    t = c.train = ConfigDict()
    t.minibatch_size = 128  # responses an optimiser step: whole groups
    t.microbatch_size = 16  # responses a forward/backward pass; divides minibatch_size
    # They are packed: a group's prompt once, responses end to end. About so many slots a row; 0 =
    # chosen by model.attention. A long response makes longer rows.
    t.row_len = 0
    # `old` log-probs: "rescore" (by the trainer, a quarter of an update), or "sampler": the
    # sampler's own, unless they differ on a microbatch by more than max_logp_gap nats a token.
    t.old_logp = "rescore"
    t.max_logp_gap = 0.01
    t.epochs = 1  # passes over a rollout; above 1 with the truncated weight of section 6.1
    o = c.optim = ConfigDict()
    o.lr = 1e-6
    o.lr_end_frac = 0.1  # cosine to lr_end_frac * lr over all optimiser steps
    o.warmup_steps = 0  # optimiser steps
    o.b1 = 0.9
    o.b2 = 0.95
    o.eps = 1e-8
    o.weight_decay = 0.01
    o.grad_clip = 1.0  # global norm
    # Parameters that are not trained, as patterns of their paths: ("embed", "blocks.*_norm").
    o.freeze = ()
    o.train_vision = False  # the vision tower of a Qwen2.5-VL too; it is frozen otherwise
    # Of the parameters: float32, or bfloat16 (half the memory) rounded at random at each step.
    o.master_dtype = "float32"

    # ---- supervised stage
    s = c.supervised = ConfigDict()
    s.steps = 1000  # optimiser steps
    s.batch_size = 128  # demonstrations a step

    # ---- held-out evaluation: before the first step, every `every` rollouts, at the end
    e = c.eval = ConfigDict()
    e.every = 10  # rollouts (supervised: steps); 0 = before and after only
    e.problems = 256
    e.samples = 4  # for the mean of k samples; greedy is always measured
    e.blank_images = False  # also greedy with white images: what does the text alone give?

    k = c.checkpoint = ConfigDict()
    k.every = 10  # rollouts (supervised: steps)
    k.keep = 2  # the newest
    k.keep_best = True  # and, rl: that of the highest eval/mean_accuracy, saved when it is measured
    # After SIGTERM or a pre-emption notice: within so many seconds the run is saved and ended.
    k.grace_s = 25.0

    # ---- an optimiser step whose loss or gradient is not finite is skipped, its batch kept
    q = c.guard = ConfigDict()
    q.max_skips = 5  # skipped steps in a row, after which the run stops
    q.keep_batches = 20  # files at most in workdir/bad_batches
    # Steps whose responses go to workdir/spikes.jsonl. 0 = off
    q.grad_spike = 10.0  # gradient norm over the median of the 50 steps before
    q.ratio_spike = 20.0  # largest pi / pi_old

    # ---- rl: means of `window` rollouts that tell of a collapse
    v = c.watch = ConfigDict()
    v.window = 10  # rollouts
    v.action = "warn"  # or "stop", or "rollback": to the last checkpoint before it, other prompts
    v.max_rollbacks = 3  # after which the run stops
    v.length_frac = 0.2  # length below this share of the first window's
    v.entropy_frac = 0.02  # entropy below this share of the first window's
    v.truncated_frac = 0.95  # responses cut off, above
    v.no_signal_frac = 0.98  # groups of equal rewards, above

    # ---- devices: product = number of devices; -1 = what is left
    h = c.mesh = ConfigDict()
    h.data = 1
    h.fsdp = -1
    h.tensor = 1

    g = c.log = ConfigDict()
    g.rollouts = 4  # responses a rollout written to rollouts.jsonl
    g.tensorboard = True
    return c


def on_slice(c, name: str, layouts: dict):
    """`c` for a TPU slice. layouts: slice -> (mesh.fsdp, mesh.tensor, microbatch_size, remat).

    UserError: a slice without a layout; `experiments.plan` finds one.
    """
    if name not in layouts:
        raise UserError(f"no layout for slice {name!r}: choose one of {', '.join(layouts)}")
    c.mesh.fsdp, c.mesh.tensor, c.train.microbatch_size, c.model.remat = layouts[name]
    return c
