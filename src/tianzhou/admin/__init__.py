"""The admin client: one typed async method per admin request.

    async with Admin("localhost:9876") as admin:
        for name in await admin.topics.names():
            print(await admin.topics.route(name))

It uses only the remoting protocol, so it works with Tianzhou and with Apache RocketMQ 4.9 and 5.x.
Attributes of `Admin`, by subject:

    requests  sending requests, nameserver fail-over, signing
    clusters  clusters and broker addresses          topics    topics and their routes
    groups    consumer groups, members, lag          offsets   reading and moving consumer offsets
    messages  sending, pulling, querying             brokers   settings and figures of brokers
    namesrv   settings and KV of nameservers         acl       accounts of 4.9

Modules of functions that combine requests:

    group_detail    members, subscriptions, lag      rates           messages per second
    message_search  by time, tag, SQL92; following   redelivery      resend, push, dead letters
    trace           message traces                   store_latency   latency between refreshes
    copy_settings   topics and groups of a broker    export          JSON documents of `mqadmin`
    doctor          common faults and their fixes
    replication     masters and their slaves; making a slave the master

Requests to several brokers run concurrently. A broker that fails is a warning (`Gathered.failures`)
as long as another one responds.
"""

from tianzhou.admin.admin_client import Admin

__all__ = ["Admin"]
