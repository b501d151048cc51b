"""Networks for a project to begin with, as text that its owner changes."""

from __future__ import annotations

from protofleet.starter.questions import Project

_HEAD = '''"""The network of '{name}': {what}.

Any torch.nn.Module does that gives a row of {outputs} numbers for each example of a batch.
"""

{imports}

class Network(nn.Module):
    """{described}."""

    def __init__(self) -> None:
        super().__init__()
{layers}
    def features(self, x: Tensor) -> Tensor:
        """What the last layer decides by, (B, {width})."""
{features}

    def forward(self, x: Tensor) -> Tensor:
        """{each}, (B, {outputs})."""
        return self.head(self.features(x))


def build() -> nn.Module:
    """What 'protofleet export model:build' and 'protofleet pretrain --model model:build' call."""
    return Network()
'''
_LAYERS = {
    "windows": """\
        self.body = nn.Sequential(
            nn.Conv1d({channels}, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(32, {width}, 5, padding=2), nn.ReLU(),
        )
        self.head = nn.Linear({width}, {outputs})
""",
    "images": """\
        self.body = nn.Sequential(
            nn.Conv2d({channels}, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, {width}, 3, padding=1), nn.ReLU(),
        )
        self.head = nn.Linear({width}, {outputs})
""",
    "table": """\
        self.body = nn.Sequential(nn.Linear({channels}, {width}), nn.ReLU())
        self.head = nn.Linear({width}, {outputs})
""",
    "texts": """\
        self.words = nn.Embedding({tokens}, {width}, padding_idx=0)
        self.head = nn.Linear({width}, {outputs})
""",
}
_FEATURES = {
    "windows": "        return self.body(x.transpose(1, 2)).mean(2)",
    "images": "        return self.body(x).mean((2, 3))",
    "table": "        return self.body(x)",
    "texts": "        return self.words(x).mean(1)",
}
_DESCRIBED = {
    "windows": "Two convolutions along time, their mean, one dense layer",
    "images": "Two convolutions, their mean, one dense layer",
    "table": "Two dense layers",
    "texts": "The mean of the words' vectors, one dense layer",
}
_WIDTH = 64


def network(project: Project) -> str:
    """The text of ``model.py``."""
    kind, outputs = project.kind, len(project.outputs)
    sizes = {"width": _WIDTH, "outputs": outputs, "tokens": project.tokens or 0}
    sizes["channels"] = project.input_shape[0 if kind in ("images", "table") else -1]
    return _HEAD.format(
        name=project.name,
        what=project.examples,
        imports="from torch import Tensor, nn\n",
        described=_DESCRIBED[kind],
        layers=_LAYERS[kind].format(**sizes),
        features=_FEATURES[kind],
        each="A value for each class" if project.classes else "A number for each target",
        **sizes,
    )
