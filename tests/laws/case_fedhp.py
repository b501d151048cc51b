"""FedHP needs learned prototypes, its training program and registered counts."""

from laws.cases import Case
from toy_prototypes import alternating, prototype_model, registered, with_programs


def case(make_tools, toy):
    def tools_of(client_id, examples):
        tools, seen = make_tools(client_id, examples)
        return with_programs(tools, seen, alternating(tools)), seen

    return Case(
        model=prototype_model(),
        settings=toy.settings,
        make_tools=tools_of,
        server_tools=toy.server_tools,
        update=registered,
    )
