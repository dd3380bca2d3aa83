"""What every member of a consumer group needs: settings, subscriptions, heartbeats, requests to
brokers.
"""
