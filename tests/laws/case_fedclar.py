"""FedCLAR's model has a head; clients cluster in round 2 and get a cluster's model in round 3."""

from dataclasses import replace

from laws import case_fedper


def case(make_tools, toy):
    base = case_fedper.case(make_tools, toy)
    return replace(base, settings={**base.settings, "cluster_round": 2})
