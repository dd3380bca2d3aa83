"""Changes: each function checks what is given and returns a plan with its execution.

How to add one: step 5 of `views/__init__.py`.
"""
