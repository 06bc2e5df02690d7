"""The plain forms that faster ones are measured by."""

import jax
import jax.numpy as jnp


def response_logprobs(model, prompt_BS, prompt_mask_BS, response_BT, mask_BT, *, temperature=1.0):
    """(logp_BT, entropy_BT), 0 where masked: each response after a prompt of its own, all logits.

    Column S-1+t of the row [prompt | response] predicts response token t.
    """
    S = prompt_BS.shape[1]
    token_BU = jnp.concatenate([prompt_BS, response_BT], axis=1)
    hidden_BUD = model.hidden(token_BU, jnp.concatenate([prompt_mask_BS, mask_BT], axis=1))
    law_BTV = jax.nn.log_softmax(model.head(hidden_BUD[:, S - 1 : -1]) / temperature)
    logp_BT = jnp.take_along_axis(law_BTV, response_BT[..., None], axis=-1)[..., 0]
    entropy_BT = -(jnp.exp(law_BTV) * law_BTV).sum(axis=-1)
    return tuple(jnp.where(mask_BT, x, 0.0) for x in (logp_BT, entropy_BT))
