"""FedPAC needs features, a head and registered counts, as ProtoHAR does."""

from laws import case_protohar


def case(make_tools, toy):
    return case_protohar.case(make_tools, toy)
