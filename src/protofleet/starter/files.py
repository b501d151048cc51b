"""The files of a project to begin with."""

from __future__ import annotations

import json
from pathlib import Path

from protofleet.errors import InputError
from protofleet.starter.networks import network
from protofleet.starter.questions import Project

_FEDERATION = """\
# The coordinator's file: protofleet coordinator run federation.toml (docs/coordinator.md)
federation = "{name}"
broker = "mqtt://127.0.0.1:1883"     # for a network of strangers: protofleet broker init
bundle = "bundle.pfb"
run_dir = "run"                      # everything that the run leaves
rounds = 20                          # it ends sooner where they bring nothing more

[cohort]
minimum = 2                          # devices that a round waits for

[strategy]
name = "{strategy}"                  # protofleet strategies; devices find the learning rate
"""
_REHEARSE = '''"""Rehearse the federation with what lies in data/: {each}."""

from pathlib import Path

import protofleet as pf

BUNDLE = "bundle.pfb"
clients = {{
    {comprehension}
}}
if len(clients) < 2:
    raise SystemExit("data/: expected {each}, of two owners at least")
print(pf.Federation(BUNDLE, clients, rounds=20, folder="rehearsal").run())
'''
_READINGS = """one.name: pf.read_recording(one, BUNDLE)
    for one in sorted(Path("data").iterdir())
    if one.is_dir()"""
_ARRAYS = """one.stem: pf.load_npz(one)
    for one in sorted(Path("data").glob("*.npz"))"""
_README = """\
# {name}

{Examples}, to {purpose}: {outputs}. `model.py` is the network, `{example}` what an example is.
{scale}`data/` takes {each}. Then, on this machine:

```sh
{export}
python rehearse.py
```

For real, a terminal each, the last on every device (docs/tutorial-pi.md, docs/enrolment.md):

```sh
protofleet broker run
protofleet coordinator run federation.toml
{prepare}{join}
```
"""
_EXPORT = """\
protofleet export model:build --preprocessing {example} {names} \\
    --strategy {strategy} --out bundle.pfb"""
_PREPARE = "protofleet device prepare data/anna --bundle bundle.pfb --out anna.npz\n"
_JOIN = """\
protofleet device join --federation {name} --broker mqtt://127.0.0.1:1883 \\
    --bundle bundle.pfb --data {data} --id anna"""
_GUESSES = """\
Its `mean` and `std` are guesses: `protofleet new --recordings PATH` takes them from your own.
"""
_NORMALISE = "Its `mean` and `std` say how numbers are normalised; put your own.\n"
_FOLDERS = "a folder of recordings for each owner, such as data/anna/walking.csv"
_FILES = "a file for each owner, such as data/anna.npz with x_train, y_train, x_test, y_test"


def check_new(folder: Path) -> None:
    """Raise InputError where a folder has files already."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"'{folder}': is there and not empty; choose another name")


def write_project(project: Project, folder: Path) -> list[Path]:
    """Write a project's files.

    Args:
        project: what it is about.
        folder: is made; nothing that is there is overwritten.

    Returns:
        The files.

    Raises:
        InputError: the folder has files already.
    """
    check_new(folder)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    texts = {
        "README.md": _readme(project),
        "model.py": network(project),
        _example_file(project): json.dumps(_example(project), indent=1, ensure_ascii=False) + "\n",
        "federation.toml": _FEDERATION.format(name=project.name, strategy=project.strategy),
        "rehearse.py": _rehearsal(project),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _example_file(project: Project) -> str:
    return "sensor.json" if project.kind == "windows" else "example.json"


def _example(project: Project) -> dict[str, object]:
    found: dict[str, object] = {"input_shape": list(project.input_shape)}
    if project.kind == "windows":
        window = project.input_shape[0]
        found |= {"rate_hz": project.rate_hz, "window": window, "hop": max(1, window // 2)}
        found["channels"] = list(project.channels)
        if project.units:
            found["units"] = list(project.units)
    if project.tokens is not None:
        return found
    return found | {"mean": list(project.mean), "std": list(project.std)}


def _rehearsal(project: Project) -> str:
    readings = project.kind in ("windows", "table") and bool(project.classes)
    return _REHEARSE.format(
        each=_FOLDERS if readings else _FILES, comprehension=_READINGS if readings else _ARRAYS
    )


def _readme(project: Project) -> str:
    readings = project.kind in ("windows", "table") and bool(project.classes)
    kind, names = ("classes", project.classes) if project.classes else ("targets", project.targets)
    task = "" if project.classes else "--task regression "
    guessed = project.tokens is None and (set(project.mean), set(project.std)) == ({0.0}, {1.0})
    scale = _GUESSES if project.kind == "windows" else _NORMALISE
    tokens = f" --tokens {project.tokens}" if project.tokens else ""
    example = _example_file(project)
    export = _EXPORT.format(
        example=example,
        names=f"{task}--{kind} {','.join(names)}{tokens}",
        strategy=project.strategy,
    )
    return _README.format(
        name=project.name,
        Examples=project.examples[0].upper() + project.examples[1:],
        purpose="tell apart" if project.classes else "predict",
        outputs=", ".join(project.outputs),
        example=example,
        scale=scale if guessed else "",
        each=_FOLDERS if readings else _FILES,
        export=export,
        prepare=_PREPARE if readings else "",
        join=_JOIN.format(name=project.name, data="anna.npz" if readings else "data/anna.npz"),
    )
