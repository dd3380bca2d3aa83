"""Pages of one cluster, made of its snapshot; detail pages also ask brokers (`state.ask_brokers`).

state        the snapshot of a request: how old it is, who did not answer, questions to brokers
problems     what is wrong in a cluster, worst first
charts       series of the history as charts and sparklines
others       one module a page
"""
