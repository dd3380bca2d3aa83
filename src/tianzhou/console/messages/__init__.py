"""Messages as pages show them.

content.py     bodies as JSON, text or hex, bounded; rows of lists
letters.py     dead letters: origin, tries, why they died
searching.py   a search by time, tag and text from a query, bounded
tailing.py     new messages of a topic as they arrive, bounded
"""
