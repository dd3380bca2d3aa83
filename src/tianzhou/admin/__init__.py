"""The admin client: one typed async method per admin request, for the command line and the console.

    async with Admin("localhost:9876") as admin:
        for name in await admin.topics.names():
            print(await admin.topics.route(name))

It speaks the remoting protocol and nothing else, so it works on Tianzhou and on Apache RocketMQ 4.9
and 5.x alike. Methods are grouped by subject:

    wire      requests, nameserver fail-over, signing      clusters  brokers and where they are
    topics    topics and their routes                      groups    consumer groups, members, lag
    offsets   reading and moving consumer offsets          messages  sending, pulling, querying
    brokers   settings and figures of brokers              namesrv   settings and KV of nameservers
    portrait  a group from all sides                       copying   settings to new brokers
    trace     what clients traced of a message             acl       accounts of 4.9
    doctor    the usual faults, and what to do             rates     what a cluster does per second

What is asked of many brokers is asked at once. A broker that does not answer is a warning
(`Gathered.missing`), not a failure, as long as another one answers.
"""

from tianzhou.admin.admin_client import Admin

__all__ = ["Admin"]
