"""`planq up` with real servers, real migrations and real supervision, but tiny stand-ins for planq's own processes.

The stand-ins start in a fraction of a second, so that the supervisor's tests are about the supervisor. Run as
`python -m tests.support.fake_up up …`; `FAKE_API` = `dies` makes the API end at once,
`FAKE_WORKER` = `misconfigured` the worker, as one does that cannot start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from planq.deploy.cli import main
from planq.deploy.local import up
from planq.deploy.local.parts import UpOptions
from planq.deploy.local.supervisor import PlanqProcess

API = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
DYING_API = "import sys; sys.exit('the API has a bad day')"
# A worker that has a child of its own, as prefork has, and takes its time to stop when it is stubborn.
WORKER = """
import signal, subprocess, sys
if sys.argv[1] == "misconfigured":
    sys.stderr.write("PLANQ_TOOLS names nothing"); sys.exit(2)
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
signal.pause(); child.wait()
"""


def fake_parts(place: UpOptions, env: Mapping[str, str]) -> list[PlanqProcess]:
    """Return stand-ins with the names of the real parts."""
    api = DYING_API if os.environ.get("FAKE_API") == "dies" else API
    mood = os.environ.get("FAKE_WORKER", "gentle")
    return [
        PlanqProcess("worker-io", [sys.executable, "-c", WORKER, mood], env, place.log("worker-io"), patience=30),
        PlanqProcess("api", [sys.executable, "-c", api, str(place.port)], env, place.log("api")),
    ]


if __name__ == "__main__":
    up.__dict__["planq_parts"] = fake_parts
    main.main()
