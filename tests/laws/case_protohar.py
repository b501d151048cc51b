"""ProtoHAR needs features, a head and registered counts, as FedSub does."""

from laws import case_fedsub


def case(make_tools, toy):
    return case_fedsub.case(make_tools, toy, exempt={})
