"""Five published losses, transcribed in torch from their papers and differentiated by torch.

From the reward to the gradient by the log-probability: advantages and loss together.
"""

import jax
import numpy as np
import pytest
from batches import batch

from cpgd_jax.advantages import advantages
from cpgd_jax.losses.policy import policy_loss

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

Q, G, T = 3, 4, 6


def grpo(logp, old, ref, R, mask, epsilon=0.2, beta=0.04):
    """DeepSeekMath (arXiv 2402.03300), equations 3 and 4; outcome supervision's A."""
    A = ((R - R.mean(1, keepdim=True)) / R.std(1, keepdim=True))[..., None]
    ratio = torch.exp(logp - old)
    surrogate = torch.min(ratio * A, torch.clamp(ratio, 1 - epsilon, 1 + epsilon) * A)
    kl = torch.exp(ref - logp) - (ref - logp) - 1
    per_response = ((surrogate - beta * kl) * mask).sum(2) / mask.sum(2)
    return -per_response.mean(1).mean()


def dapo(logp, old, ref, R, mask, low=0.2, high=0.28):
    """DAPO (arXiv 2503.14476), equations 8 and 9."""
    A = ((R - R.mean(1, keepdim=True)) / R.std(1, keepdim=True))[..., None]
    ratio = torch.exp(logp - old)
    surrogate = torch.min(ratio * A, torch.clamp(ratio, 1 - low, 1 + high) * A)
    return -(surrogate * mask).sum() / mask.sum()


def dr_grpo(logp, old, ref, R, mask, epsilon=0.2, length=8):
    """Dr. GRPO (arXiv 2503.20783): no std, and its `masked_mean` with a constant denominator."""
    A = (R - R.mean(1, keepdim=True))[..., None]
    ratio = torch.exp(logp - old)
    surrogate = torch.min(ratio * A, torch.clamp(ratio, 1 - epsilon, 1 + epsilon) * A)
    return -((surrogate * mask).sum(2) / length).mean()


def whiten(x, mask):
    kept = x[mask.bool()]
    return (x - kept.mean()) / kept.std(unbiased=False)


def rloo(logp, old, ref, R, mask, epsilon=0.2):
    """RLOO (arXiv 2402.14740), its A; the clip and token-wise normalisation are CPGD's."""
    A = R - (R.sum(1, keepdim=True) - R) / (G - 1)
    A = whiten(A[..., None].expand(Q, G, T), mask)
    ratio = torch.exp(logp - old)
    surrogate = torch.min(ratio * A, torch.clamp(ratio, 1 - epsilon, 1 + epsilon) * A)
    return -((surrogate * mask).sum(2) / mask.sum(2)).mean()


def reinforce_pp(logp, old, ref, R, mask, epsilon=0.2, beta=0.1):
    """REINFORCE++ (arXiv 2501.03262): KL in the return, global normalisation, clip."""
    kl = (old - ref) * mask
    returns = R[..., None] - beta * kl.flip(2).cumsum(2).flip(2)
    A = whiten(returns, mask)
    ratio = torch.exp(logp - old)
    surrogate = torch.min(ratio * A, torch.clamp(ratio, 1 - epsilon, 1 + epsilon) * A)
    return -((surrogate * mask).sum(2) / mask.sum(2)).mean()


PUBLISHED = {
    "grpo": (grpo, {"kl_coef": 0.04}),
    "dapo": (dapo, {}),
    "dr_grpo": (dr_grpo, {"max_response_len": 8}),
    "rloo": (rloo, {}),
    "reinforce_pp": (reinforce_pp, {"kl_coef": 0.1}),
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("seed", range(4))
def test_reward_to_gradient(name, seed):
    published, cells = PUBLISHED[name]
    b = batch(seed, Q, G, T, spread=0.3)
    rng = np.random.default_rng(seed + 100)
    R = rng.permuted(np.tile([0.0, 0.5, 1.0, 1.5], (Q, 1)), axis=1)  # every group has a signal
    ref = (b["old_logp_BT"] + rng.normal(0, 0.3, (Q * G, T))).astype(np.float32)

    def split(x):
        return torch.tensor(np.asarray(x, np.float64)).reshape(Q, G, T)

    logp = split(b["logp_BT"]).requires_grad_()
    want = published(
        logp, split(b["old_logp_BT"]), split(ref), torch.tensor(R), split(b["mask_BT"])
    )
    want.backward()

    mask_QGT = b["mask_BT"].reshape(Q, G, T)
    A = advantages(
        name,
        R,
        mask_QGT.sum(2),
        log_ratio_to_ref_QGT=(b["old_logp_BT"] - ref).reshape(Q, G, T),
        mask_QGT=mask_QGT,
        **cells,
    )
    b["advantage_B"] = A.reshape(Q * G, T) if A.ndim == 3 else A.reshape(-1)
    rest = {k: v for k, v in b.items() if k != "logp_BT"} | {"ref_logp_BT": ref}
    loss, grad = jax.value_and_grad(lambda x: policy_loss(name, logp_BT=x, **rest, **cells)[0])(
        b["logp_BT"]
    )
    assert float(loss) == pytest.approx(want.item(), rel=2e-5, abs=2e-6)
    expected = logp.grad.reshape(Q * G, T).numpy()
    np.testing.assert_allclose(grad, expected, rtol=5e-5, atol=1e-5 * np.abs(expected).max())
