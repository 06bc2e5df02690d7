"""What is kept of a block for its backward pass, and what is computed again, by name."""

import jax
from jax.ad_checkpoint import checkpoint_name

INPUT, PRODUCT = "block_input", "product"  # names of a block's input, of products with parameters

POLICIES = {
    # results of products with parameters; attention, norms and the activation are computed again
    "dots": jax.checkpoint_policies.save_only_these_names(PRODUCT),
    # nothing but the block's input; a third more work
    "block": jax.checkpoint_policies.nothing_saveable,
    # not even that stays on the device: it waits in the host's memory
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


def wrap(block, name: str):
    """block(x, layer), a scan's body, under the policy `name`; "none" keeps everything."""
    if name == "none":
        return block

    def named(x, layer):
        return block(checkpoint_name(x, INPUT), layer)

    # In a scan the loop itself keeps the compiler from undoing the recomputation.
    return jax.checkpoint(named, policy=POLICIES[name], prevent_cse=False)
