"""What the event loop of a broker runs besides requests, and in which order.

One iteration of the loop runs the callbacks that are ready, in the order in which they became so.
Five mechanisms decide what is ready:

1. Requests (`remoting/connection.py`): one connection's handlers run for about 0.1 ms, then other
   connections get their turn.
2. Expensive requests that can wait, such as messages sent back by consumers (`fair_queue.py`): one
   queue per connection, served round-robin, in one slice at a time.
3. Background work: delayed and timed messages (`ticker.py`), one slice at a time, at the time that
   the work asks for.
4. The slices of 2 and 3 (`yielding.py`): one slice per iteration, whichever it belongs to, of
   0.4 ms; while clients send, of 0.15 ms, with a rest of 1 ms after 0.6 ms of work.
5. Work that takes longer than a slice: admin requests and tables to save (`remoting/slices.py`) are
   generators, and yield to the loop between their steps.

When nothing is ready the loop sleeps, except for 0.2 ms after a request of a client that sends its
next request at once (`requests/busy_poll.py`).

`arrivals.py` notifies packages of new messages, `tasks.py` runs periodic work, `crash_points.py` is
for tests of crashes, `sqlite_file.py` opens the indexes that can be rebuilt.
"""
