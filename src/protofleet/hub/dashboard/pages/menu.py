"""Which pages there are, in the order of the menu."""

from __future__ import annotations

from protofleet.hub.dashboard.pages import (
    Page,
    alerts,
    costs,
    device,
    federations,
    fleet,
    model,
    now,
    operate,
    rounds,
)

PAGES = {
    "now": Page(title="Now", view=now.view),
    "fleet": Page(title="Fleet", view=fleet.view),
    "device": Page(title="Device", view=device.view, details=device.details, in_menu=False),
    "rounds": Page(title="Rounds", view=rounds.view, details=rounds.details),
    "model": Page(title="Model", view=model.view, details=model.details),
    "costs": Page(title="Bytes and cost", view=costs.view),
    "alerts": Page(title="Alerts", view=alerts.view, details=alerts.details),
    "federations": Page(title="Federations", view=federations.view),
    "operate": Page(title="Operate", view=operate.view, details=operate.details, shows_trail=True),
}
"""By name: ``/dashboard/RUN/NAME``, template ``NAME.html.jinja2``."""
