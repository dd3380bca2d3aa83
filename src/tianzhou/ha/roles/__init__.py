"""Who is master and who follows: the rules of a group with an authority, as a state machine.

`machine.step` takes an event (`events`) and returns actions (`actions`). No socket, no file, no
clock, no randomness: the time is an argument, so that every interleaving can be tested.
"""
