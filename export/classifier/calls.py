"""What a forward pass calls: torch's functions in order, and which tensors go from one to another.

That is the level at which a model is written: ``linear``, ``relu``, ``flatten``. The same recorder
finds a model's parts once, and gives the activations of hidden layers whenever the model runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of a function of tensors.

    Attributes:
        index: its place in the order of calls.
        name: of the function, without the underscore of the variant that writes its argument.
        module: name of the innermost module that ran.
        sources: calls that made its inputs; -1 stands for the example.
        params: names of the parameters that it reads, also those of which a weight is computed.
        output: its (first) result.
    """

    index: int
    name: str
    module: str
    sources: tuple[int, ...]
    params: frozenset[str]
    output: Tensor


EXAMPLE = -1
"""Stands among ``Call.sources`` for the model's input."""


class CallRecorder(TorchFunctionMode):
    """Inside, notes every call that computes on the example.

    Tensors stay alive as long as the recorder does, so that no two have one identity.

    Args:
        model: whose parameters and modules calls are told by.
        x: the example.
        visit: called with every call as soon as its output is there.

    Attributes:
        calls: in order.
        runs: how often each module of the model ran, by name.
        example: what goes in.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, *, visit: Callable[[Call], None] = lambda _call: None
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.runs: Counter[str] = Counter()
        self.example, self._visit = x, visit
        self._params = {id(value): name for name, value in model.named_parameters()}
        self._names = {id(module): name for name, module in model.named_modules()}
        self._running: list[str] = []
        # By id: the call that made a tensor last, and what is computed from parameters alone.
        self._makers: dict[int, int] = {id(x): EXAMPLE}
        self._computed: dict[int, frozenset[str]] = {}
        self._alive: list[Tensor] = [x]

    def run(self, function: Callable[[Tensor], Any]) -> Any:
        """What a function, mostly the model, makes of the example."""
        before = nn.modules.module.register_module_forward_pre_hook(self._enter)
        after = nn.modules.module.register_module_forward_hook(self._leave, always_call=True)
        try:
            with self:
                return function(self.example)
        finally:
            before.remove()
            after.remove()

    def maker(self, value: Tensor) -> Call | None:
        """The call that made a tensor; None: it is the example or none of them."""
        index = self._makers.get(id(value), EXAMPLE)
        return None if index == EXAMPLE else self.calls[index]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` and note it."""
        result = func(*args, **(kwargs or {}))
        inputs = tuple(_tensors((args, kwargs)))
        made = list(_tensors(result))
        if func is Tensor.__setitem__:
            made = [args[0]]
        if inputs and made:
            self._note(_name(func), inputs, made)
        return result

    def _note(self, name: str, inputs: tuple[Tensor, ...], made: list[Tensor]) -> None:
        sources = {self._makers[id(t)] for t in inputs if id(t) in self._makers}
        params: frozenset[str] = frozenset()
        for tensor in inputs:
            if id(tensor) in self._params:
                params |= {self._params[id(tensor)]}
            params |= self._computed.get(id(tensor), frozenset())
        self._alive += [*inputs, *made]
        if not sources:
            self._computed |= {id(tensor): params for tensor in made}
            return
        call = Call(
            index=len(self.calls),
            name=name,
            module=self._running[-1] if self._running else "",
            sources=tuple(sorted(sources)),
            params=params,
            output=made[0],
        )
        self.calls.append(call)
        self._makers |= {id(tensor): call.index for tensor in made}
        self._visit(call)

    def _enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002 - hook signature
        name = self._names.get(id(module), "")
        self._running.append(name)
        self.runs[name] += 1

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002 - as above
        self._running.pop()


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode and computes no gradients; its mode comes back."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def _name(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", str(func))
    return name if name.endswith("__") else name.rstrip("_")
