"""A perceptron of two hidden layers in float64: features, logits, gradients, plain SGD."""

import numpy as np

BODY = ("body.0", "body.2")


def wide(tensors):
    """A float64 copy of named arrays."""
    return {name: np.array(value, np.float64) for name, value in tensors.items()}


def hidden(params, x):
    """Activations of both hidden layers."""
    first = np.maximum(x @ params["body.0.weight"].T + params["body.0.bias"], 0)
    return first, np.maximum(first @ params["body.2.weight"].T + params["body.2.bias"], 0)


def features(params, x):
    return hidden(params, x)[1]


def softmax(logits):
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def error_of(logits, y):
    """Derivative of the mean cross-entropy by the logits."""
    return (softmax(logits) - np.eye(logits.shape[1])[y]) / len(y)


def through_body(params, x, by_features):
    """Gradients of the body from those by the features."""
    first, second = hidden(params, x)
    by_second = by_features * (second > 0)
    by_first = (by_second @ params["body.2.weight"]) * (first > 0)
    return {
        "body.2.weight": by_second.T @ first,
        "body.2.bias": by_second.sum(axis=0),
        "body.0.weight": by_first.T @ x,
        "body.0.bias": by_first.sum(axis=0),
    }


def descend(params, names, gradient, *, steps, lr, momentum=0.0, weight_decay=0.0, clip=np.inf):
    """``steps`` of SGD on the named tensors; ``gradient`` gives them all at a point.

    ``clip`` bounds the norm of all their gradients together, before the decay is added.
    """
    params, velocity = dict(params), dict.fromkeys(names, 0.0)
    for _ in range(steps):
        grads = gradient(params)
        norm = np.sqrt(sum(np.sum(grads[name] ** 2) for name in names))
        scale = min(1.0, clip / norm) if norm else 1.0
        for name in names:
            pull = scale * grads[name] + weight_decay * params[name]
            velocity[name] = momentum * velocity[name] + pull
        params |= {name: params[name] - lr * velocity[name] for name in names}
    return params


def class_means(rows, y, classes):
    """Mean row of each class, zeros for those without."""
    means = np.zeros((classes, rows.shape[1]))
    for label in set(y.tolist()):
        means[label] = rows[y == label].mean(axis=0)
    return means
