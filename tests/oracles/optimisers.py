"""Optimisers as their papers print them, in float64."""

import numpy as np


def sgd(params, gradients, *, lr, momentum, weight_decay):
    params = params.astype(np.float64)
    velocity = None
    for gradient in gradients:
        g = gradient + weight_decay * params
        velocity = g if velocity is None else momentum * velocity + g
        params = params - lr * velocity
    return params


def adam(params, gradients, *, lr, beta1, beta2, eps, weight_decay, eps_form):
    params = params.astype(np.float64)
    m = v = np.zeros_like(params)
    for t, gradient in enumerate(gradients, 1):
        g = gradient + weight_decay * params
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        if eps_form == "torch":
            params = params - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        else:
            rate = lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)
            params = params - rate * m / (np.sqrt(v) + eps)
    return params
