"""FedRep's model has a head."""

from laws import case_fedper


def case(make_tools, toy):
    return case_fedper.case(make_tools, toy)
