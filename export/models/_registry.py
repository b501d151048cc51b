"""Models by name, and any user's module by ``package.module:function``."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from protofleet.errors import InputError, ProtofleetError
from protofleet.export.catalogue import MODELS

ModelFactory = Callable[..., nn.Module]


def build_model(spec: str, **settings: Any) -> nn.Module:
    """Build a model.

    Args:
        spec: a name in ``MODELS``, or ``package.module:function`` (importable, or in the working
            folder) of a function that returns a ``torch.nn.Module`` with ``forward(x) -> logits``.
        settings: keyword arguments of the factory.

    Raises:
        InputError: unknown name, module, function or setting, or no module came back.
    """
    factory = _factory(spec)
    _check_settings(spec, factory, settings)
    try:
        model: Any = factory(**settings)
    except ProtofleetError:
        raise
    except Exception as error:
        raise InputError(f"model '{spec}': cannot be made: {_told(error)}") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"model '{spec}': expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.DataParallel):
        raise InputError(
            f"model '{spec}': is wrapped by DataParallel, which runs copies of it; return "
            "model.module"
        )
    return model


def _factory(spec: str) -> ModelFactory:
    return _registered(MODELS[spec].factory) if spec in MODELS else _user_factory(spec)


def _registered(place: str) -> Any:
    """What of ``export.models`` a registered model's entry names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"protofleet.export.models.{module}"), name)


def _user_factory(spec: str) -> ModelFactory:
    module_name, separator, function = spec.partition(":")
    if not separator or not module_name or not function:
        raise InputError(
            f"model '{spec}': expected one of {', '.join(sorted(MODELS))} "
            "or package.module:function"
        )
    # As with ``python -m``; last, so that nothing in the working folder hides an installed module.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"model '{spec}': no module named '{error.name}'; run the command in the folder that "
            "holds it, or put that folder on PYTHONPATH"
        ) from error
    except ProtofleetError:
        raise
    except Exception as error:
        raise InputError(f"model '{spec}': its module fails: {_told(error)}") from error
    factory = getattr(module, function, None)
    if not callable(factory):
        raise InputError(f"model '{spec}': module '{module_name}' has no function '{function}'")
    named: ModelFactory = factory
    return named


def _told(error: Exception) -> str:
    """Kind and first line of an error, and the last place in the user's code."""
    lines = str(error).strip().splitlines() or ["no message"]
    others = (str(Path(torch.__file__).parent), "<frozen", __file__)
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(others)
    ]
    if isinstance(error, SyntaxError):
        places.append(f"{error.filename}:{error.lineno}")
    return " at ".join([f"{type(error).__name__}: {lines[0]}", *places[-1:]])


def settings_of(spec: str) -> dict[str, Any]:
    """Names and defaults of a model's settings; None where one must be given.

    Raises:
        InputError: unknown name, module or function.
    """
    found = _settings(spec, _factory(spec))
    return {
        name: None if one.default is one.empty else one.default
        for name, one in found.items()
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
    }


def described(spec: str) -> str:
    """The first line of what a model's factory says of itself."""
    return (inspect.getdoc(_factory(spec)) or "").partition("\n")[0]


def has_setting(spec: str, name: str) -> bool:
    """Whether the model's factory takes a setting of this name.

    Raises:
        InputError: unknown name, module or function.
    """
    return name in _settings(spec, _factory(spec))


def _settings(spec: str, factory: ModelFactory) -> Mapping[str, inspect.Parameter]:
    known = MODELS.get(spec)
    if known is not None and known.config:
        module = known.factory.partition(":")[0]
        factory = _registered(f"{module}:{known.config}")
    return inspect.signature(factory).parameters


def _must_be_set(parameter: inspect.Parameter) -> bool:
    by_name = {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
    return parameter.default is parameter.empty and parameter.kind in by_name


def _check_settings(spec: str, factory: ModelFactory, settings: Mapping[str, Any]) -> None:
    parameters = _settings(spec, factory)
    missing = [name for name, p in parameters.items() if _must_be_set(p) and name not in settings]
    if missing:
        given = " ".join(f"--set {name}=VALUE" for name in missing)
        raise InputError(f"model '{spec}': expected values of {', '.join(missing)}: {given}")
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = settings.keys() - parameters.keys()
    if unknown:
        raise InputError(
            f"model '{spec}': unknown setting '{min(unknown)}', "
            f"known are {', '.join(sorted(parameters)) or 'none'}"
        )
