"""The use cases of a worker, over ports only: plan, run a step, respond, go on, sweep, retain.

`Engine.run` takes one wake-up and carries it as far as this process can: claim, work, finish, continue. Nothing here
knows PostgreSQL, Celery, a provider or HTTP.
"""

from worker.engine.carried import Carried
from worker.engine.engine import Engine, EngineSettings
from worker.engine.sweeper import Retainer, Sweeper, SweepSettings

__all__ = ["Carried", "Engine", "EngineSettings", "Retainer", "SweepSettings", "Sweeper"]
