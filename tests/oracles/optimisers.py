"""Optimisers and updates as their papers print them, in float64."""

import numpy as np


def sgd(params, gradients, *, lr, momentum, weight_decay, mu=0, reference=0, correction=0):
    params = params.astype(np.float64)
    velocity = None
    for gradient in gradients:
        g = gradient + weight_decay * params + mu * (params - reference) + correction
        velocity = g if velocity is None else momentum * velocity + g
        params = params - lr * velocity
    return params


def adam(
    params,
    gradients,
    *,
    lr,
    beta1,
    beta2,
    eps,
    weight_decay,
    eps_form,
    mu=0,
    reference=0,
    correction=0,
):
    params = params.astype(np.float64)
    m = v = np.zeros_like(params)
    for t, gradient in enumerate(gradients, 1):
        g = gradient + weight_decay * params + mu * (params - reference) + correction
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        if eps_form == "torch":
            params = params - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        else:
            rate = lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)
            params = params - rate * m / (np.sqrt(v) + eps)
    return params


def control(control, server_control, server_params, params, *, steps, lr):
    """SCAFFOLD's new c_i, option II."""
    c_i, c, x, y = (a.astype(np.float64) for a in (control, server_control, server_params, params))
    return c_i - c + (x - y) / (steps * lr)


def ala(weights, local, global_, grads, eta):
    """FedALA's new weights and the parameters that they mix."""
    weights, local, global_ = (a.astype(np.float64) for a in (weights, local, global_))
    weights = np.clip(weights - eta * grads * (global_ - local), 0, 1)
    return weights, local + (global_ - local) * weights
