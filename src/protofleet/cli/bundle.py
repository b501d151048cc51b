"""``protofleet bundle``: look into, verify and trust signed bundles, and roll them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._rollout import COMMANDS
from protofleet.cli._sections import SectionedGroup
from protofleet.cli._width import rows as in_rows
from protofleet.cli.quantise import quantise

if TYPE_CHECKING:
    from protofleet.bundle import Bundle
    from protofleet.bundle.manifest import Manifest, Preprocessing

_PATH = click.Path(path_type=Path)


_SECTIONS = {
    "To make and to look into": ("keygen", "inspect", "verify", "trust", "quantise"),
    "To roll one out in a federation, for its operator": (
        "publish",
        "status",
        "next",
        "pause",
        "resume",
        "rollback",
    ),
}


@click.group(cls=SectionedGroup, sections=_SECTIONS)
def bundle() -> None:
    """Look into, verify, trust, quantise and roll out signed bundles.

    docs/bundle.md has the format and its rules.
    """


bundle.add_command(quantise)
for _name, _command in COMMANDS.items():
    bundle.add_command(_command, _name)


@bundle.command()
@click.argument("path", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(path: Path, as_json: bool) -> None:
    """Show what the bundle PATH holds, after checking every rule but the signer."""
    from protofleet.bundle import Bundle

    opened = Bundle.open(path, any_signer=True)
    if as_json:
        click.echo(json.dumps(_summary(opened), indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(_lines(opened)))


@bundle.command()
@click.argument("path", type=_PATH)
@click.option(
    "--trust",
    "trust_files",
    type=_PATH,
    multiple=True,
    help="Public key (PEM) to accept; default: the keys added by 'bundle trust', and your own.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(
    path: Path,
    trust_files: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Say whether a device would take the bundle PATH; exit with 1 and the reason if not."""
    from protofleet.bundle import Bundle, keys
    from protofleet.errors import RefusedError
    from protofleet.signatures import fingerprint

    trusted = frozenset(map(keys.load_public_key, trust_files)) or keys.user_trust()
    try:
        opened = Bundle.open(path, trusted=trusted)
    except RefusedError as error:
        if not as_json:
            raise
        click.echo(json.dumps({"valid": False, "rule": error.rule, "reason": str(error)}))
        raise SystemExit(1) from error
    signer = fingerprint(bytes.fromhex(opened.signer))
    if as_json:
        click.echo(json.dumps({"valid": True, "digest": opened.digest, "signer": signer}))
    else:
        click.echo(f"valid: bundle {opened.digest}, signed by {signer}")


@bundle.command()
@click.option("--out", type=_PATH, help="Also write the public key to this file.")
def keygen(out: Path | None) -> None:
    """Make this user's signing key, unless there is one, and print its public half."""
    from cryptography.hazmat.primitives import serialization

    from protofleet.bundle import keys
    from protofleet.signatures import fingerprint

    public = keys.load_or_create_signing_key().public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    if out is not None:
        keys.save_public_key(public.public_bytes_raw(), out)
    click.echo(f"fingerprint {fingerprint(public.public_bytes_raw())}")
    click.echo(pem.decode().rstrip())


@bundle.command()
@click.argument("public_key", type=_PATH)
def trust(public_key: Path) -> None:
    """Accept bundles signed with PUBLIC_KEY (a PEM file) on this machine."""
    from protofleet.bundle import keys
    from protofleet.signatures import fingerprint

    public = keys.load_public_key(public_key)
    click.echo(f"trusting {fingerprint(public)}: {keys.trust(public)}")


def _summary(opened: Bundle) -> dict[str, Any]:
    import msgspec

    from protofleet.signatures import fingerprint

    manifest: dict[str, Any] = msgspec.to_builtins(opened.manifest)
    signer = fingerprint(bytes.fromhex(opened.signer))
    return {"digest": opened.digest, "signer": signer, **manifest}


def _sequence(manifest: Manifest) -> str:
    if manifest.replaces_up_to <= manifest.sequence:
        return f"{manifest.sequence}"
    return f"{manifest.sequence}, takes the place of any up to {manifest.replaces_up_to}"


def _tokens(preprocessing: Preprocessing) -> str:
    return "" if preprocessing.tokens is None else f", {preprocessing.tokens} tokens"


def _sensor(preprocessing: Preprocessing) -> dict[str, str]:
    """What readings are before they become the input."""
    rows = {}
    if preprocessing.window and preprocessing.rate_hz:
        rows["windows"] = (
            f"{preprocessing.window} samples at {preprocessing.rate_hz:g} Hz, "
            f"one every {preprocessing.hop or preprocessing.window}"
        )
    if preprocessing.channels:
        rows["channels"] = ", ".join(preprocessing.channels)
    if preprocessing.tokens is None:
        rows["mean"] = ", ".join(f"{one:g}" for one in preprocessing.mean)
        rows["std"] = ", ".join(f"{one:g}" for one in preprocessing.std)
    return rows


def _file(opened: Bundle, path: str | None, kind: str) -> str:
    """Programs may share a file."""
    if path is None:
        return f"no {kind} file"
    return f"{path}, {opened.manifest.files[path].bytes:,} bytes"


def _lines(opened: Bundle) -> list[str]:
    summary = _summary(opened)
    manifest = opened.manifest
    model = opened.model()
    rows = {
        "bundle": f"{manifest.name} (format {manifest.format}, {manifest.created})",
        "digest": opened.digest,
        "signer": summary["signer"],
        "sequence": _sequence(manifest),
        "layout": manifest.layout_hash,
        "params": f"{len(model.params)} tensors, {model.params.layout.size:,} values",
        "state": f"{len(model.buffers)} tensors, {model.buffers.layout.size:,} values",
        "input": f"{list(manifest.preprocessing.input_shape)}{_tokens(manifest.preprocessing)}",
        **_sensor(manifest.preprocessing),
        "task": manifest.task,
        "classes" if manifest.classes else "targets": ", ".join(manifest.outputs),
        "strategy": f"{manifest.strategy.name} {manifest.strategy.settings}",
    }
    pairs = list(rows.items())
    for name, program in manifest.programs.items():
        ports = f"{len(program.inputs)} inputs, {len(program.outputs)} outputs"
        onnx, tflite = _file(opened, program.file, "ONNX"), _file(opened, program.tflite, "TFLite")
        pairs.append(("program", f"{name}: {onnx}, {ports}, {program.precision}, {tflite}"))
    pairs += [("origin", f"{key}: {value}") for key, value in manifest.provenance.items()]
    pairs += [
        ("file", f"{path}: {entry.bytes:,} bytes, sha256 {entry.sha256}")
        for path, entry in manifest.files.items()
    ]
    return list(in_rows(pairs))
