"""The replicated state machine of generation 4: queues of chunks and runs, changed by ``State.apply`` alone.

Pure: the same changes give the same state on every member, live and in replay. What only a leader knows (leases, tasks
that wait for a delay, waiting consumers) is beside it.
"""
