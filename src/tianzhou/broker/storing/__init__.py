"""Between handlers and the store: redirects of special messages, durability, retries and dead
letters.
"""
