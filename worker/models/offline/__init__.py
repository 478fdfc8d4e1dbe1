"""`offline`: planq's own rules in the place of a language model. This is no language model.

It recognises a small grammar of commands (see `grammar`), turns them into a plan over the tools that are offered,
wires references between the calls, and composes the answer from the results by fixed rules. The same input gives the
same output, nothing leaves the process, and no input makes it raise. Every answer ends by saying how it was made.

    search the handbook for X · search for X · look up X · research X      knowledge_search
    calculate X · what is 2 + 2                                           calculate
    fetch URL                                                             http_fetch
    what time is it                                                       now
    wait N seconds                                                        wait
    write a report (titled T) from them | from it | about X               write_report
    call TOOL with {JSON}                                                 any tool, by its exact name

Commands are joined by "and", "then", commas, full stops and new lines; quoted text is taken literally. "it" and "the
result" in a calculation mean the calculation before.
"""

from planq.worker.models.offline.planner import guide_offline, plan_offline
from planq.worker.models.offline.responder import answer_offline
from planq.worker.models.offline.turns import turn_offline

__all__ = ["answer_offline", "guide_offline", "plan_offline", "turn_offline"]
