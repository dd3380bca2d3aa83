"""Between handlers and the store: redirects, durability, overload, prefetch, retries and dead
letters.
"""
