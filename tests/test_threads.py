"""Records that two threads decode for the first time at once, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_RECORDS = """
from __future__ import annotations
class Inner(msgspec.Struct):
    x: int
    y: str = ""
class Outer(msgspec.Struct):
    a: Inner
    b: list[Inner] = []
"""
_PROGRAM = """
import sys, threading, types
import msgspec
from protofleet.threads import prepare_records

sys.setswitchinterval(1e-6)
module = types.ModuleType("protofleet.made_up")
module.msgspec = msgspec
sys.modules[module.__name__] = module
for _ in range(300):
    exec(RECORDS, module.__dict__)
    outer = module.Outer
    prepare_records()
    barrier = threading.Barrier(2)

    def decode():
        barrier.wait()
        msgspec.json.decode(b'{"a":{"x":1},"b":[{"x":2,"y":"z"}]}', type=outer)

    threads = [threading.Thread(target=decode) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_prepared_records_are_decoded_by_several_threads_at_once():
    """Without that the process ends with a segmentation fault, mostly at the first try."""
    program = f"RECORDS = {_RECORDS!r}\n{_PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
