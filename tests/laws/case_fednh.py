"""FedNH needs a head of directions, features and registered counts."""

import numpy as np
from laws.cases import Case
from toy_model import changed, frozen_map
from toy_prototypes import alternating, registered

from protofleet.tensors import Model


def case(make_tools, toy):
    def tools_of(client_id, examples):
        tools, seen = make_tools(client_id, examples)
        return changed(tools, y=alternating(tools), features=lambda n, x: x + n.params["w"]), seen

    params = {"w": [0, 0], "head.directions": np.eye(2), "head.scale": 1.0}
    model = Model(
        params=frozen_map(params),
        buffers=frozen_map({"beta": 0.3}),
        num_classes=2,
        input_shape=(2,),
        head=("head.directions", "head.scale"),
        features=2,
    )
    return Case(
        model=model,
        settings=toy.settings,
        make_tools=tools_of,
        server_tools=toy.server_tools,
        update=registered,
    )
