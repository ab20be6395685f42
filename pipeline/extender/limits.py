"""Time-outs and limits of the extender's service, each with its reason.

`make docs` writes them into docs/reference/extender.md. Those of the state table are in
`pipeline/table/limits.py`, those of connections in `pipeline/http_server/limits.py`.
`tests/extender/test_limits.py` states how the values relate, and that no other module of these
packages has any.
"""

from typing import Final

from pipeline.processors.placement.extender_config import TIMEOUT_SECONDS
from pipeline.processors.placement.victim_selection import SETTLE_SECONDS

# Declared where the scheduler's configuration is printed; named here because other limits are
# chosen by it.
SCHEDULER_TIMEOUT_SECONDS: Final = float(TIMEOUT_SECONDS)
"""`httpTimeout` of the configurations that Springtide prints and ships. The scheduler discards
later answers."""

# -- request bodies and answers

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Larger bodies get 413: without a bound one client could fill the memory. 10,000 whole Nodes are
about 66 MB."""
LARGE_BODY_BYTES: Final = 1024 * 1024
"""Larger bodies need a slot, from the first byte to the end of the answer. 5,000 names are 0.1 MB
and never do."""
WARNED_BODY_BYTES: Final = 2 * 1024 * 1024
"""The first body of whole Nodes beyond this is reported in the log: to read it holds the event loop
for more than 2 ms, and in all that time no other request is answered."""
LARGE_BODIES: Final = 4
"""Slots for large bodies: a scheduler asks about one pod at a time, and there are few of them."""
LARGE_WAIT_SECONDS: Final = 0.5
"""Wait for a slot, then 503, also in mode `observe`. Shorter than the scheduler's time-out, so that
it still reads the refusal."""
SMALL_BODIES_BYTES: Final = 64 * 1024 * 1024
"""All small bodies together; beyond it small ones need a slot, too."""
BODY_TIMEOUT_SECONDS: Final = 30.0
"""Time for a body to arrive, then 400: a client that sends slowly holds memory and perhaps a slot.
A scheduler has hung up long before."""
ANSWER_TIMEOUT_SECONDS: Final = 10.0
"""Time for a client to read its answer, or each part of `/v1/nodes`, then it is disconnected: it
holds the same."""
MAX_POD_BYTES: Final = 4 * 1024 * 1024
"""Larger pods get 400. etcd stores objects of up to 1.5 MiB; a pod of a million list items would
take a second and hundreds of megabytes."""
MAX_NODES: Final = 50_000
"""Nodes of one request, several times those of the largest clusters; 400 for more."""
MAX_EXPLAIN_BYTES: Final = MAX_POD_BYTES + 256 * MAX_NODES
"""A pod and names of nodes, of up to 253 bytes: larger bodies of `/v1/explain` get 413."""
NEW_NODE_SECONDS: Final = 300.0
"""A node that never reported counts as new until one of its pods is older than this."""

# -- what filter leaves for prioritize

CYCLE_SECONDS: Final = 2.0
"""How long the work of filter for a pod is valid for prioritize. The scheduler asks both within
its time-out each, so older work belongs to an earlier attempt."""
CYCLES: Final = 32
"""Pods whose work is remembered: those of a few schedulers at once."""
REMEMBERED_POD_BYTES: Final = 256 * 1024
"""Replies to larger pods are not remembered: 32 of these may fill 8 MiB."""
LOG_PERIOD_SECONDS: Final = 1.0
"""At most one line of the log a verb for answers; they may come hundreds of times a second."""
FAILURE_LOG_SECONDS: Final = 60.0
"""At most one traceback a plugin, for the same reason."""

# -- hot nodes

HOT_LAST_RESORT_SECONDS: Final = 300.0
"""A pod that has waited for so long may go to a hot node, too: something that the extender does not
see may keep it from all others. Replacements of evicted pods are placed within seconds."""

# -- pods that every node refused

WAITING_GROUPS: Final = 64
"""Kinds of waiting pods, by demand and rules, of which the nodes are remembered."""
WAITING_PODS: Final = 100
"""Pods of a kind that are remembered: a wake-up for one of them retries all."""
FORGET_WAITING_SECONDS: Final = 330.0
"""kube-scheduler asks about a waiting pod every 5 minutes, whatever happens."""
WAKE_UP_CHECK_SECONDS: Final = 0.5
"""Between two looks for waiting pods, while there are none. With a second of the actuator a pod is
retried within seconds, unless the scheduler's own back-off is longer."""
JUDGED_NODES: Final = 2000
"""Nodes that are judged in a step of the event loop, which takes less than a millisecond."""
JUDGE_SECONDS: Final = 0.025
"""Between two steps, so that no request waits for more than one: about 3% of a processor while
many kinds of pods wait."""
WAKE_UP_REPEAT_SECONDS: Final = 30.0
"""After a wake-up the pods it retries are judged again, without another question about them, after
this time, then after twice as long: the actuator may be away, or kube-scheduler itself may refuse
the node."""

# -- turns of the event loop

NODES_IN_A_TURN: Final = 100
"""Nodes that `/v1/nodes` describes and sends before it lets requests of a scheduler go on: about a
millisecond."""
THREAD_SWITCH_SECONDS: Final = 0.0005
"""After this time a thread that writes a large document lets the event loop go on. Python's default
is 5 ms."""

DOCUMENT_SECONDS: Final = 1.0
"""For so long every client gets the same document of the console: ten thousand nodes take a fifth
of a second of a thread."""

# -- accuracy for the console

ACCURACY_RECORDS: Final = 200_000
"""Judged peaks that are read for `/v1/accuracy`: each node has one an hour, so that of more than
1,190 nodes less than the longest span is read."""
ACCURACY_LONGEST_SECONDS: Final = 7 * 86_400.0
"""The span of `springtide accuracy`."""
ACCURACY_SHORTEST_SECONDS: Final = 86_400.0
"""The span that is read of any number of nodes."""
RISK_SECONDS: Final = 3600.0
"""How far back the risks of pools are read, which the planner states every ten minutes."""
ACCURACY_SECONDS: Final = 600.0
"""Between two readings while somebody asks for them: peaks are judged once an hour."""
ACCURACY_READ_SECONDS: Final = 300.0
"""A reading that takes longer has failed, and the next one waits for `ACCURACY_SECONDS`."""

# -- what is read while somebody asks for it

READ_RETRY_SECONDS: Final = 10.0
"""After a reading that has failed."""
READ_WAIT_SECONDS: Final = 5.0
"""A client waits for so long for the first document, and gets 503 then."""
WHAT_IF_SECONDS: Final = 10.0
"""Between two readings of what-if results while somebody asks for them: an operator who has
published one looks for it."""
WHAT_IF_READ_SECONDS: Final = 60.0
"""A reading that takes longer has failed."""

# -- long polls for a node's view

LONGEST_WAIT_SECONDS: Final = 60.0
"""Longest `wait` of a client: below the idle time-outs of common proxies (60 s and more)."""
WAITING_CLIENTS: Final = 12_000
"""All nodes of a large cluster at one replica, while the other is away, with 13 kB each; 503 for
more."""

# -- plans to evict pods for a Prod pod

PLANS_PER_POD: Final = 3
"""If three nodes did not help, more evictions will not."""
PLAN_VALID_SECONDS: Final = 30.0
"""An evictor must take up a plan before usage has changed much: one window."""
PLAN_BEGUN_SECONDS: Final = 60.0
"""If no pod of a plan leaves within this time, no evictor executes it."""
PLAN_PAIR_SECONDS: Final = 40.0
"""All of these times are longer by this for each two pods beyond the first two: by default two pods
may leave a node at the same time, and take up to 30 s to end."""
# Declared with the choice of victims, which is pure and must not depend on this service.
PLAN_SETTLED_SECONDS: Final = SETTLE_SECONDS + PLAN_VALID_SECONDS
"""After this time no window includes usage of the pods that left. The evictor may take up a plan
late and counts from its last eviction: it would refuse an earlier plan."""
PLAN_PAUSE_SECONDS: Final = 1.0
"""Between two plans. Planning takes some ten milliseconds, in which no request is answered."""
PLAN_RETRY_SECONDS: Final = 10.0
"""Until the next attempt for a pod for which no plan helps."""
PLAN_NODES_CONSIDERED: Final = 512
"""The least full nodes; a plan on a fuller one needs more evictions."""
PLAN_NODES_COMPARED: Final = 4
"""Nodes on which a plan would help, of which the cheapest is taken."""
PLANNED_PODS: Final = 10_000
"""Pods whose plans are remembered."""

# -- checks in the background

OUTAGE_CHECK_SECONDS: Final = 1.0
"""Between two checks for outages, whose begin and end the log names."""
ANNOTATION_CHECK_SECONDS: Final = 5.0
"""Between two checks for invalid annotations of Nodes, which the log names."""

# -- shutdown

LINGER_SECONDS: Final = 3.0
"""A pod gets SIGTERM at the moment at which it leaves its Service. Nodes and load balancers need
one or two seconds to hear of it; until then new connections are still answered."""
FINISH_SECONDS: Final = 10.0
"""For answers under way. With the above well below Kubernetes' grace period of 30 s."""
