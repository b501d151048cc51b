"""A whole call of adaptive local aggregation as its authors print it, in float64."""

import numpy as np


def call(own, received, weights, loss, *, upper, batches, eta, threshold, window, cap):
    """One call.

    ``own`` and ``received``: name → array of every shared tensor. ``weights``: None at the first
    call. ``loss(params, batch)`` → number and name → gradient. ``upper``: names that are mixed.
    Returns the mixed tensors, the weights and the number of passes.
    """
    first = weights is None
    gap = {k: received[k].astype(np.float64) - own[k].astype(np.float64) for k in upper}
    w = {k: np.ones_like(gap[k]) if first else weights[k].astype(np.float64) for k in upper}

    def mix():
        mixed = {k: v.astype(np.float64) for k, v in received.items()}
        for k in upper:
            mixed[k] = own[k].astype(np.float64) + gap[k] * w[k]
        return mixed

    last_losses = []
    while True:
        for batch in batches:
            value, gradients = loss(mix(), batch)
            for k in upper:
                w[k] = np.clip(w[k] - eta * gradients[k] * gap[k], 0.0, 1.0)
        last_losses.append(value)
        if not first or len(last_losses) == cap:
            break
        if len(last_losses) > window:
            tail = np.array(last_losses[-window:])
            if np.sqrt(np.mean((tail - tail.mean()) ** 2)) < threshold:
                break
    return mix(), w, len(last_losses)
