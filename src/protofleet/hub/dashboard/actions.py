"""What an operator does from the dashboard: the same functions as the command line calls.

Each writes an order or a record where the run's coordinator finds it; none speaks to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import segno

from protofleet.coordinator.ledger.control import Orders, Wish
from protofleet.coordinator.ledger.rollout_rows import RolloutSettings
from protofleet.coordinator.membership.invitations import (
    EnrolmentStatus,
    find_meeting,
    own_broker,
    standings,
)
from protofleet.coordinator.membership.invitations import invite as make_invitation
from protofleet.coordinator.membership.invitations import revoke as end_grant
from protofleet.coordinator.membership.members import Members
from protofleet.coordinator.publish import publish as begin_rollout
from protofleet.coordinator.publish import steer, take_back
from protofleet.errors import InputError
from protofleet.federation.settings import FederationConfig
from protofleet.hub.dashboard.watch import WatchedRun
from protofleet.units import clock_text

_ANSWER_S = 2.0
"""A coordinator that aggregates takes an order later; the page shows when."""
_HOURS = {"1": 3600, "24": 86_400, "168": 604_800}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """What came of an action.

    Attributes:
        text: for people, and for the audit trail: nothing secret.
        secret: an invitation, shown once; ``code``: the same as a picture (a ``data:`` address).
    """

    text: str
    secret: str = ""
    code: str = ""


Action = Callable[[WatchedRun, Mapping[str, str], str], ActionResult]
"""Takes the run, the form's fields, and the address of the page for phones ('' if there is none).

Raises a ProtofleetError where it cannot be done.
"""


def _order(run: WatchedRun, wish: Wish, done: str) -> ActionResult:
    with closing(Orders(run.folder)) as orders:
        order = orders.wish(wish)
        taken = orders.await_taken(order, _ANSWER_S)
    return ActionResult(text=done if taken else f"{done}; no coordinator has taken the order yet")


def pause(run: WatchedRun, _form: Mapping[str, str], _phones: str) -> ActionResult:
    """Let no other round open."""
    return _order(run, Wish.PAUSE, "the open round ends, and no other opens")


def resume(run: WatchedRun, _form: Mapping[str, str], _phones: str) -> ActionResult:
    """Let rounds open again."""
    return _order(run, Wish.RUN, "rounds open again")


def stop(run: WatchedRun, _form: Mapping[str, str], _phones: str) -> ActionResult:
    """End the coordinator after the open round."""
    return _order(run, Wish.STOP, "the coordinator ends after the open round")


def invite(run: WatchedRun, form: Mapping[str, str], phones: str) -> ActionResult:
    """Invite a device, with an invitation that a running coordinator answers."""
    config = _config(run)
    name, valid_s = form.get("device", "").strip(), _HOURS.get(form.get("hours", ""), 86_400)
    told: list[str] = []
    with Members.open(_keys(config)) as members:
        access = None if own_broker(_keys(config), config.federation) else config.broker
        meeting = find_meeting(members, access)
        made = make_invitation(members, meeting, name, valid_s, told.append)
    shown = f"{phones}/#{made}" if phones else str(made)
    code = segno.make(shown, error="l", micro=False).svg_data_uri(scale=4, border=2, light="#fff")
    text = "; ".join([f"{made.device_id} is invited until {clock_text(made.until)}", *told])
    return ActionResult(text=text, secret=shown, code=code)


def revoke(run: WatchedRun, form: Mapping[str, str], _phones: str) -> ActionResult:
    """Let a device in no more."""
    keys, name = _keys(_config(run)), form.get("device", "").strip()
    told: list[str] = []
    with Members.open(keys) as members:
        if not end_grant(members, own_broker(keys, members.name), name, told.append):
            raise InputError(f"device '{name[:80]}': there is nothing to revoke")
    return ActionResult(text="; ".join([f"{name} is revoked", *told]))


def publish(run: WatchedRun, form: Mapping[str, str], _phones: str) -> ActionResult:
    """Let devices have another bundle, in stages."""
    path = Path(form.get("bundle", "").strip()).expanduser()
    if not path.is_absolute():
        raise InputError(f"bundle '{path}': expected an absolute path on the hub's machine")
    settings = RolloutSettings(by_hand=form.get("by_hand") == "on")
    found = begin_rollout(_config(run), path, settings)
    target = "" if found.rollout is None else found.rollout.target
    return ActionResult(text=f"bundle {target[:16]} goes out, first to {settings.first} device")


def next_stage(run: WatchedRun, _form: Mapping[str, str], _phones: str) -> ActionResult:
    """Go on with a roll-out that waits or is paused."""
    found = steer(_config(run), "running")
    return ActionResult(text=f"the roll-out goes on with stage {found.stage}")


def roll_back(run: WatchedRun, _form: Mapping[str, str], _phones: str) -> ActionResult:
    """End a roll-out that is under way."""
    found = take_back(_config(run), None).rollout
    back = found is not None and found.former
    text = "devices go back to the bundle before" if back else "no further device is offered it"
    return ActionResult(text=f"the roll-out ends, and {text}")


ACTIONS: Mapping[str, Action] = {
    "pause": pause,
    "resume": resume,
    "stop": stop,
    "invite": invite,
    "revoke": revoke,
    "publish": publish,
    "next-stage": next_stage,
    "roll-back": roll_back,
}
"""By the last part of their address."""


def read_standings(run: WatchedRun) -> tuple[EnrolmentStatus, ...]:
    """Who is invited, enrolled or revoked; none where the federation's folder is not known.

    Raises:
        InputError: the folder cannot be read.
    """
    if run.config is None or run.config.keys is None:
        return ()
    with Members.open(run.config.keys) as members:
        return tuple(standings(members, time.time()))


def _config(run: WatchedRun) -> FederationConfig:
    if run.config is None:
        raise InputError(
            "expected the federation file, which tells of keys and bundle: start the hub with it, "
            "protofleet hub FILE.toml"
        )
    return run.config


def _keys(config: FederationConfig) -> Path:
    if config.keys is None:
        raise InputError(
            f"federation '{config.federation}': it has no keys, so whoever reaches the broker "
            "takes part; there is nobody to invite or revoke"
        )
    return config.keys
