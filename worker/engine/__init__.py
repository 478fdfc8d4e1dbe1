"""The worker's half of the kernel: claim, carry out, go on, sweep; over ports only.

`Loop.run` takes one wake-up and carries it as far as this process can. What an attempt does is in
`planq.worker.handlers`; nothing here knows of plans, tools, models, agents or HTTP.
"""

from planq.worker.engine.chain import WakeOutcome
from planq.worker.engine.loop import Loop, LoopSettings
from planq.worker.engine.slots import Shares
from planq.worker.engine.sweeper import Retainer, Sweeper, SweepSettings

__all__ = ["Loop", "LoopSettings", "Retainer", "Shares", "SweepSettings", "Sweeper", "WakeOutcome"]
