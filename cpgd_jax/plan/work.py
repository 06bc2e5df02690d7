"""Floating-point operations of a traced program: every product, as often as its loops run it."""

import math

import jax
import jax.extend.core


def flops(jaxpr, live: float = 1.0) -> float:
    """Of all devices together. live: share of the blocks that an attention kernel computes.

    A loop whose number of turns depends on data counts once.
    """
    return sum(_of(eqn, live) for eqn in jaxpr.eqns)


def _of(eqn, live: float) -> float:
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        (left, _), _ = params["dimension_numbers"]
        inner = math.prod(eqn.invars[0].aval.shape[i] for i in left)
        return 2.0 * inner * math.prod(eqn.outvars[0].aval.shape)
    if name == "pallas_call":
        inside = flops(params["jaxpr"], live)
        return inside * math.prod(params["grid_mapping"].grid) * live
    if name == "cond":
        return max(flops(branch.jaxpr, live) for branch in params["branches"])
    inside = sum(flops(jaxpr, live) for jaxpr in jax.extend.core.jaxprs_in_params(params))
    if name == "scan":
        return inside * params["length"]
    if name == "shard_map":
        mesh, manual = params["mesh"], params["newly_manual_axes"]
        return inside * math.prod(mesh.shape[axis] for axis in manual)
    return inside
