"""The worker's half of the kernel: claim, carry out, go on, sweep; over ports only.

`Dispatcher.run` takes one wake-up and carries it as far as this process can. What an attempt does is in
`planq.worker.handlers`; nothing here knows of plans, tools, models, agents or HTTP.
"""

from planq.worker.engine.chain import WakeOutcome
from planq.worker.engine.loop import Dispatcher, DispatcherSettings
from planq.worker.engine.slots import Shares
from planq.worker.engine.sweeper import Retainer, Sweeper, SweepSettings

__all__ = ["Dispatcher", "DispatcherSettings", "Retainer", "Shares", "SweepSettings", "Sweeper", "WakeOutcome"]
