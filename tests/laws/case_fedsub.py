"""FedSub needs hidden layers and registered counts: a perceptron, classes told by the examples."""

import dataclasses

import numpy as np
from laws.cases import Case
from tiny_perceptron import perceptron, with_programs

_EXEMPT = {
    "one_client_gets_its_own_params_back": "its server keeps them under the client's name; "
    "test_fedsub.py holds it"
}


def case(make_tools, toy, exempt=_EXEMPT):
    model = perceptron()

    def tools_of(client_id, examples):
        tools, seen = make_tools(client_id, examples)
        labels = (tools.training.x[:, 0] > tools.training.x[:, 1]).astype(np.int64)
        return with_programs(tools, y=labels), seen

    def registered(update, tools):
        counts = np.bincount(tools.training.y, minlength=model.num_classes)
        return dataclasses.replace(update, class_counts=counts)

    return Case(
        model=model,
        settings=toy.settings,
        make_tools=tools_of,
        server_tools=toy.server_tools,
        update=registered,
        exempt=exempt,
    )
