"""FedHKD needs features, predictions, its training program and registered counts."""

from laws.cases import Case
from toy_model import changed
from toy_prototypes import alternating, prototype_model, registered, with_programs


def case(make_tools, toy):
    def tools_of(client_id, examples):
        tools, seen = make_tools(client_id, examples)
        tools = with_programs(tools, seen, alternating(tools))
        pulled = tools.training.grad_fns["prototype_mse"]

        def hyper_knowledge(network, batch, rng):
            return pulled(network, {**batch, "weight": batch["feature_weight"]}, rng)

        return changed(
            tools, grad_fns={"hyper_knowledge": hyper_knowledge}, predict=tools.features
        ), seen

    return Case(
        model=prototype_model(),
        settings=toy.settings,
        make_tools=tools_of,
        server_tools=toy.server_tools,
        update=registered,
    )
