"""A training step in simulated time; the public function is `engine.engine.simulate`.

Six models time the same schedules. Each is exact where it says so; tests tie them to each other.

===========  ================================  ===============================  ==================
model        used for                          exact for                        cost
===========  ================================  ===============================  ==================
recurrence   one collective alone: choice of   unshared links, or alike edges   1e8 sends/s; rings
             algorithm, bounds, calibration    that share a link and start      that repeat are
                                               together                         not stepped
flow         fidelity "flow", the default:     as the recurrence; elsewhere     a few events for
             any number of collectives         `Run.notes` gives the error      each collective
message      fidelity "message": every send    max-min fair sharing of links    1e5 sends/s, 6e5
             is an event; up to 5e6 sends;                                      with numba; 3e6 by
             by rounds where none is shared                                     rounds
sockets      Gloo without other traffic or a   one connection for each pair     an event and a
             profile, in run, tune and         of ranks, ready messages,        booking of each link
             collective; ranks that are alike  shared cores; jobs take turns    for each message of
             stand for each other, so that                                      a rank that stands
             one host or 71 unlike ranks are                                    for others
             simulated; larger: flow, noted
rank vector  ranks with jitter, if one         at most one collective at a      an array operation
             collective is in progress at a    time, among all ranks            for each task
             time
surrogate    search for buckets in `perfmodel  one all-reduce at a time, alike  microseconds for a
             tune`; the simulation checks it   ranks, host ahead of the device  set of buckets
===========  ================================  ===============================  ==================

Messages of workers to servers (`engine/loop_run.py`) are streams, which share links max-min fairly:
`flow/stream_network.py`, exact, thousands at once; = flow: tests/simulate/flow/test_stream_network.

===========  =====================================  ==============================================
model        module                                 held by
===========  =====================================  ==============================================
recurrence   collectives/timing/recurrence.py       = send by send: tests/collectives/timing
flow         simulate/flow/network.py               = message: tests/simulate/test_all_algorithms,
                                                    test_legs, test_agreement (near elsewhere)
message      simulate/message/network.py            = a plain SimPy version:
                                                    tests/simulate/message/test_event_loop;
                                                    = SimGrid: tests/simulate/test_simgrid;
                                                    rounds = message by message: tests/
                                                    collectives/timing/test_chunk_recurrence
sockets      simulate/sockets/network.py            = flow where nothing queues, and measurements:
                                                    tests/simulate/sockets/test_network,
                                                    test_alike_ranks (who stands for whom),
                                                    tests/validate/trainings
rank vector  simulate/ranks/rank_vectors.py         = an engine process for each rank:
                                                    tests/simulate/ranks/test_rank_vectors
surrogate    studies/tune/objective/surrogate.py    = simulation of all partitions:
                                                    tests/studies/tune/test_run
===========  =====================================  ==============================================

Costs are from ``reports/benchmarks``. Max-min filling is written twice, each for other data: arrays
(`sharing/max_min.py`), and the linked lists of the message kernel
(`message/kernel/link_sharing.py`).
"""
