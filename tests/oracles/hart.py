"""HART's light-weight convolution as its published code trains it, by loops in float64.

Four kernels; a slice (B, Z, width) is rows of Z values as they lie in memory, and row r has kernel
r % 4.
"""

import numpy as np


def softmax(rows):
    shifted = np.exp(rows - rows.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def place(row, rows, by_kernel):
    """Where what row ``row`` of ``rows`` becomes is put: its place, or among its kernel's rows."""
    return row % 4 * (rows // 4) + row // 4 if by_kernel else row


def convolve(x, kernels, *, by_kernel=False):
    """Each row with its kernel, zeros outside, centred."""
    tokens, length = x.shape[1], kernels.shape[1]
    rows, out = x.reshape(-1, tokens), np.zeros((x.size // tokens, tokens))
    for r, row in enumerate(rows):
        for j in range(tokens):
            for tap in range(length):
                i = j + tap - (length - 1) // 2
                if 0 <= i < tokens:
                    out[place(r, len(rows), by_kernel), j] += kernels[r % 4, tap] * row[i]
    return out.reshape(x.shape)


def kernel_gradient(x, upstream, length, *, by_kernel):
    """Of the sum of ``upstream`` times ``convolve(x, kernels, by_kernel=by_kernel)``."""
    tokens = x.shape[1]
    rows, given = x.reshape(-1, tokens), upstream.reshape(-1, tokens)
    found = np.zeros((4, length))
    for r, row in enumerate(rows):
        for j in range(tokens):
            for tap in range(length):
                i = j + tap - (length - 1) // 2
                if 0 <= i < tokens:
                    found[r % 4, tap] += given[place(r, len(rows), by_kernel), j] * row[i]
    return found


class Published:
    """Convolution, then a linear layer on what it gives, flattened; plain SGD on cross-entropy.

    ``train`` overwrites the stored kernels by their softmax and uses them; the step moves those.
    ``infer`` uses them as they are. With ``by_kernel`` rows are put together by their kernel, as
    the published code does, which mixes the examples of a batch.
    """

    def __init__(self, kernels, weight, bias, lr, by_kernel):
        self.kernels, self.weight, self.bias = (
            value.astype(np.float64) for value in (kernels, weight, bias)
        )
        self.lr, self.by_kernel = lr, by_kernel

    def infer(self, x):
        mixed = convolve(x.astype(np.float64), self.kernels, by_kernel=self.by_kernel)
        return mixed.reshape(len(x), -1) @ self.weight.T + self.bias

    def train(self, x, y):
        self.kernels = softmax(self.kernels)
        x = x.astype(np.float64)
        mixed = convolve(x, self.kernels, by_kernel=self.by_kernel).reshape(len(x), -1)
        shares = softmax(mixed @ self.weight.T + self.bias)
        loss = -np.log(shares[np.arange(len(y)), y]).mean()
        upstream = (shares - np.eye(len(self.bias))[y]) / len(y)
        given = (upstream @ self.weight).reshape(x.shape)
        moved = kernel_gradient(x, given, self.kernels.shape[1], by_kernel=self.by_kernel)
        self.weight -= self.lr * upstream.T @ mixed
        self.bias -= self.lr * upstream.sum(axis=0)
        self.kernels -= self.lr * moved
        return loss
