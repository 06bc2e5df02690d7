"""The responses as they come in, on the host."""

import numpy as np

from cpgd_jax.types import Rollout


class Answers:
    """limit_B: the length cap of each response; stop_V: True = this id ends a response."""

    def __init__(self, limit_B, stop_V):
        self.limit_B, self.stop_V = limit_B, stop_V
        self.length_B = np.zeros(len(limit_B), np.int32)
        self.stopped_B = np.zeros(len(limit_B), bool)
        self.response_BT = np.zeros((len(limit_B), limit_B.max()), np.int32)
        self.logp_BT = np.zeros(self.response_BT.shape, np.float32)

    def add(self, request, token, logp) -> None:
        """Tokens in the order in which they were sampled; request -1 = not one."""
        request, token, logp = (np.ravel(x) for x in (request, token, logp))
        order = np.argsort(request, kind="stable")
        order = order[np.searchsorted(request[order], 0) :]
        request = request[order]
        nth = np.arange(len(request)) - np.searchsorted(request, request)
        at = request, self.length_B[request] + nth
        self.response_BT[at], self.logp_BT[at] = token[order], logp[order]
        self.length_B += np.bincount(request, minlength=len(self.length_B)).astype(np.int32)
        self.stopped_B[request] |= self.stop_V[token[order]]

    def ended(self, request):
        return self.stopped_B[request] | (self.length_B[request] >= self.limit_B[request])

    def rollout(self) -> Rollout:
        mask_BT = np.arange(self.response_BT.shape[1])[None] < self.length_B[:, None]
        return Rollout(self.response_BT, mask_BT, self.logp_BT, ~self.stopped_B)
